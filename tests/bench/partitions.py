"""What the partitions of a table cost capture: new ones, those known to it after a restart, and the start of shapes.

The first table is CPU time, with a scripted catalog and publisher. For the others a PostgreSQL server and a broker run
on this machine; times are wall-clock time. A row is written to each partition in
one transaction. The time runs from its commit, or from the start of capture, until the transaction's commit is
published.
"""

import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flushtracker.capture.history_check import TransactionIdentity
from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shapes.definition import ShapeDefinition
from tests.bench.measure import Table, seconds
from tests.support import scripted_source as scripted
from tests.support.capture_rig import CaptureRig, RunningCapture, shape
from tests.support.waiting import wait_until

_DEADLINE_S = 600.0
_ROOT = "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)"
_PARTITIONS = """
DO $$ BEGIN FOR n IN {first}..{last} LOOP
  EXECUTE format('CREATE TABLE t_%s PARTITION OF t FOR VALUES FROM (%s) TO (%s)', n, n * 10, n * 10 + 10);
END LOOP; END $$
"""
_ROW = "INSERT INTO t VALUES ({0} * 10, 'v')"
_ROW_EACH = "INSERT INTO t SELECT n * 10 + {number}, 'v' FROM generate_series(1, {count}) n"


def tables(*, quick: bool = False) -> Iterator[Table]:
    yield Table(
        "Registration of new partitions that are all found with the first change, without a server",
        ["partitions", "shapes", "CPU s", "bytes published"],
        [_registration(count, shapes) for count, shapes in ((100, 10), (400, 10), (400, 1))],
    )
    new, starts = ([10], [(5, 10)]) if quick else ([100, 400], [(300, 200)])
    with tempfile.TemporaryDirectory(prefix="flushtracker-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with LocalBroker(folder / "broker") as broker:
            rows = [_new_partitions(broker, folder, count, shapes) for count in new for shapes in (1, 10)]
            yield Table(
                "One row into each new partition of a table, s",
                [
                    "partitions",
                    "shapes",
                    "all created before",
                    "each created by its own transaction",
                    "after a restart",
                ],
                rows,
            )
            yield Table(
                "The start of capture with new shapes on one table, s",
                ["shapes", "partitions", "until all are registered"],
                [_start(broker, folder, shapes, partitions) for shapes, partitions in starts],
            )


def _registration(count: int, shapes: int) -> list[str]:
    source = scripted.Source()
    source.define(*(ShapeDefinition(f"s{number}", scripted.NAME, snapshot=False) for number in range(shapes)))
    new = [scripted.partition(number) for number in range(3, 3 + count)]
    source.tables.table = replace(scripted.TABLE, partitions=(scripted.partition(1), *new))
    before = _published_bytes(source)

    def change_each() -> None:
        for number, each in enumerate(new):
            transaction = TransactionIdentity(scripted.LSN + number, 800, "t")
            source.subscriptions.tables.handle_relation(scripted.relation(each), transaction)

    took = seconds(change_each)
    return [f"{count:,}", f"{shapes:,}", f"{took:.3f}", f"{_published_bytes(source) - before:,}"]


def _published_bytes(source: scripted.Source) -> int:
    return sum(len(value) for _, value in source.publisher.values)


def _new_partitions(broker: LocalBroker, folder: Path, count: int, shapes: int) -> list[str]:
    with _rig(broker, folder) as rig:
        rig.server.execute(_ROOT, _PARTITIONS.format(first=0, last=0))
        rig.define(*(shape(f"s{number}", "public.t", where=f"id % 10 <> {10 + number}") for number in range(shapes)))
        capture = _started(rig, shapes)
        rig.execute_and_wait("INSERT INTO t VALUES (0, 'first')")
        rig.server.execute(_PARTITIONS.format(first=1, last=count))
        created = _published_s(rig, _ROW_EACH.format(number=1, count=count))
        later = range(count + 1, 2 * count + 1)
        each = _published_s(rig, *(sql for n in later for sql in (_PARTITIONS.format(first=n, last=n), _ROW.format(n))))
        rig.acknowledge_all()
        capture.stop()
        lsn = rig.commit_lsn(_ROW_EACH.format(number=2, count=2 * count))
        start = time.monotonic()
        rig.start()
        _wait_for_commits(rig, lsn)
        restarted = time.monotonic() - start
        assert len(rig.items("s0")) == 4 * count + 1
        assert all(entry.removed_at is None for entry in rig.registry().values())
    return [f"{count:,}", f"{shapes:,}", f"{created:.2f}", f"{each:.2f}", f"{restarted:.2f}"]


def _start(broker: LocalBroker, folder: Path, shapes: int, partitions: int) -> list[str]:
    with _rig(broker, folder) as rig:
        rig.server.execute(_ROOT, _PARTITIONS.format(first=1, last=partitions))
        rig.define(*(shape(f"s{number}", "public.t", where=f"id = {number}") for number in range(shapes)))
        took = _seconds(lambda: _started(rig, shapes))
    return [f"{shapes:,}", f"{partitions:,}", f"{took:.2f}"]


def _started(rig: CaptureRig, shapes: int) -> RunningCapture:
    capture = rig.start()
    wait_until(lambda: len(rig.registry()) == shapes, "all shapes", _DEADLINE_S)
    return capture


def _published_s(rig: CaptureRig, *statements: str) -> float:
    """From before the statements until the last of their changes is published."""
    return _seconds(lambda: _wait_for_commits(rig, rig.commit_lsn(*statements)))


def _wait_for_commits(rig: CaptureRig, lsn: int) -> None:
    wait_until(lambda: any(event.lsn >= lsn - 1 for event in rig.fragments()), "the commits", _DEADLINE_S)


def _seconds(run: Callable[[], object]) -> float:
    start = time.monotonic()
    run()
    return time.monotonic() - start


@contextmanager
def _rig(broker: LocalBroker, folder: Path) -> Iterator[CaptureRig]:
    unique = uuid.uuid4().hex[:8]
    with LocalPostgres(folder / f"server-{unique}") as server:
        rig = CaptureRig(server, broker.bootstrap_servers, folder / unique, lambda topic: f"{topic}-{unique}")
        rig.create()
        try:
            yield rig
        finally:
            rig.close()
