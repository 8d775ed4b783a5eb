"""``make soak``: kill every part of the whole loop repeatedly, at random moments under load.

Server, broker, capture, tracker and writers are processes, as in production. SIGKILL ends one of them, the two Spark
drivers most often, and it is started again at once. Meanwhile the slot's ``confirmed_flush_lsn`` is read again and
again, and after it the shape log, which must have every transaction that the slot has confirmed: in each shape that it
concerns, with all of its items and its ``commit`` row. Which these are is read from the server's WAL, with
``test_decoding`` on a slot of its own. No ack may be less than the one before, and the slot may not be past the last.

The history of some shapes is folded after two seconds: of these, the transactions after the horizon must be there.

After every tenth kill the workload pauses. Then the slot must reach the end of the WAL, no row may be in the log twice,
folding each log must give the shape's query, and every decision so far must be one that the models allow
(:mod:`tests.support.loop_trace`, :mod:`tests.support.log_trace`).

DuckDB, Polars and followers of ours read the shapes all the time, and must have what ``read_shape`` has.

``python -m tests.integration.soak_loop [--kills 100] [--seed N]`` prints one line per kill, and one for the result. A
seed repeats the workload and what is killed, not the moments.
"""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.support.loop_readers import LoopReaders
from tests.support.loop_watch import LoopWatch
from tests.support.loop_workload import LoopWorkload
from tests.support.s3_server import S3Server
from tests.support.seeded_soak import main, report
from tests.support.whole_loop import Part, WholeLoop

_WEIGHTS: Final[dict[Part, int]] = {"tracker": 3, "writers": 3, "capture": 2, "broker": 1, "server": 1}
_PROGRESS_CHANCE: Final = 0.6
"""The probability that a kill waits until the slot has advanced since the last one; other kills may be in a start."""
_LONGEST_DELAY_S: Final = 8.0
_REST_EVERY: Final = 10


def soak(folder: Path, kills: int, seed: int, store: S3Server | None = None) -> None:
    """Kill that often; with a ``store``, tables and checkpoints are there."""
    rng = random.Random(seed)  # noqa: S311  reproducible choices
    flush, write_unit = rng.choice(["batch", "hold"]), rng.choice(["txn", "txn_fragment"])
    started, killed, reads = time.monotonic(), Counter[str](), Counter[str]()
    with WholeLoop(folder, flush=flush, write_unit=write_unit, store=store) as loop:
        watch = LoopWatch(loop)
        report(started, f"seed={seed} flush={flush} write_unit={write_unit}")
        while killed.total() < kills:
            seed_of_rest = rng.randrange(1 << 30)
            with (
                LoopReaders(loop.log, watch.source, seed_of_rest, f"{loop.place}/log") as readers,
                LoopWorkload(lambda: loop.server, seed_of_rest) as workload,
            ):
                for _ in range(min(_REST_EVERY, kills - killed.total())):
                    if rng.random() < _PROGRESS_CHANCE:
                        watch.await_lsn(watch.confirmed_lsn + 1)
                    watch.sample_for(rng.uniform(0, _LONGEST_DELAY_S))
                    (part,) = rng.choices([*_WEIGHTS], [*_WEIGHTS.values()])
                    loop.kill(part)
                    killed[part] += 1
                    readers.raise_failure()
                    report(started, f"kill={killed.total()} part={part} {watch.counts()}")
            if workload.failure is not None:
                raise workload.failure
            outcome = watch.rest()
            readers.raise_failure()
            readers.check_followers()
            reads.update(readers.reads)
            report(started, f"at rest: {outcome} {watch.counts()} reads={dict(reads)} restarts={readers.restarts}")
        watch.close()
        assert watch.checked == loop.truth.transactions > kills
        assert watch.trace.confirming > kills
        assert watch.horizons or kills < _REST_EVERY, "no log was folded"
        assert min(reads[name] for name in ("followers", "duckdb", "polars")) > 0
    counts = " ".join(f"{part}_kills={killed[part]}" for part in _WEIGHTS)
    report(started, f"kills={kills} {counts} seed={seed} {watch.counts()}: nothing lost, nothing confirmed early")


if __name__ == "__main__":
    main(__doc__, "kills", soak)
