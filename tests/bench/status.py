"""What it costs that the job tells its status over HTTP, to a client that asks for all of it once a second.

The first workload of :mod:`tests.bench.tracking`, in turns without ``status.listen`` and with it. The client is a
thread of this process, so what it uses is part of the cost; Prometheus asks every fifteen seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from threading import Event, Thread
from typing import Final
from urllib.request import urlopen

from flushtracker.config.status_config import StatusConfig
from flushtracker.local.postgres import HOST, free_port
from flushtracker.spark.session import start_session
from tests.bench.load import Load
from tests.bench.measure import Table
from tests.bench.tracking import SHUFFLE_PARTITIONS, measure

_ROUNDS: Final = 4
_PATHS: Final = ("metrics", "status.json", "page.json")


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    spark = start_session("bench", shuffle_partitions=SHUFFLE_PARTITIONS)
    without: list[float] = []
    with_status: list[float] = []
    measure(spark, Load(), "kafka", 16)
    answers = 0
    for _ in range(_ROUNDS):
        without += measure(spark, Load(), "kafka", 16)
        status = StatusConfig(HOST, free_port(), ())
        with _asking(status) as count:
            with_status += measure(spark, Load(), "kafka", 16, status)
        answers += count[0]
    spark.stop()
    ratio = median(with_status) / median(without)
    rows = [
        ["without status", f"{median(without):.3f} s", ""],
        ["with status", f"{median(with_status):.3f} s", f"{answers}"],
        ["ratio", f"{ratio:.3f}", ""],
    ]
    yield Table("A batch of 300,000 events", ["", "a batch", "answers"], rows)


@contextmanager
def _asking(status: StatusConfig) -> Iterator[list[int]]:
    stop, count = Event(), [0]

    def ask() -> None:
        while not stop.wait(1):
            count[0] += sum(_is_answered(status.listen, path) for path in _PATHS)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    yield count
    stop.set()
    thread.join()


def _is_answered(listen: str, path: str) -> bool:
    """Not before the job has begun, nor after it."""
    try:
        with urlopen(f"http://{listen}/{path}", timeout=10) as answer:
            return bool(answer.read())
    except OSError:
        return False
