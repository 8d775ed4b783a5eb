"""The closed loop while capture, server, broker and tracker are killed: nothing is lost, nothing confirmed early."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from flushtracker.log_offset import LogOffset
from flushtracker.lsn import parse_lsn
from tests.integration.capture_loop_parts import Sample, Tracker, Workload, Writers, transactions
from tests.integration.capture_rig import CaptureRig, shape, wait_until
from tests.integration.killed_capture import POINTS

SHAPES = (
    shape("all", "public.rows", replica="full"),
    shape("ones", "public.rows", where="bucket = 1"),
    shape("others", "public.rows", where="bucket IN (2, 3)", depends_on=["ones"]),
)
SEED = 20261121


class ClosedLoop:
    """Everything around capture, in steps, with a sample of the slot after each."""

    def __init__(self, rig: CaptureRig) -> None:
        rng = random.Random(SEED)  # noqa: S311  a test's workload, the same each time
        self.rig = rig
        self.workload = Workload(rig, rng)
        self.writers = Writers(rig, rng, KafkaPublisher(rig.config.kafka))
        self.tracker = Tracker(rig)
        self.samples: list[Sample] = []

    def step(self, *, chance: float = 0.5) -> None:
        self.writers.step(chance=chance)
        self.tracker.step()
        self.sample()

    def sample(self) -> None:
        self.samples.append(Sample(self.rig.confirmed_lsn(), dict(self.writers.flushed)))

    def run_until(self, condition: Callable[[], object], what: str) -> None:
        """Work until something has happened."""

        def happened() -> bool:
            self.workload.step()
            self.step()
            return bool(condition())

        wait_until(happened, what, 120)

    def finish(self) -> None:
        """No more work: flush all, until the slot is past the last commit."""
        ((end,),) = self.rig.server.execute("SELECT pg_current_wal_insert_lsn()::text")

        def confirmed() -> bool:
            self.step(chance=1.0)
            return self.samples[-1].confirmed_lsn >= parse_lsn(end)

        wait_until(confirmed, "the slot past the last commit", 120)


@pytest.fixture
def rig(
    postgres: LocalPostgres, tmp_path: Path, topic_name: Callable[[str], str]
) -> Iterator[tuple[CaptureRig, LocalBroker]]:
    """A server and a broker of the test's own, which it may kill."""
    with LocalBroker(tmp_path / "broker") as own:
        rig = CaptureRig(postgres, own.bootstrap_servers, tmp_path, topic_name)
        rig.settings["max_batch_size"] = 10
        rig.create()
        postgres.execute(
            "CREATE TABLE rows (id serial PRIMARY KEY, bucket int, note text)", "ALTER TABLE rows REPLICA IDENTITY FULL"
        )
        rig.define(*SHAPES)
        yield rig, own
        rig.close()


def restart_lsn(rig: CaptureRig) -> int:
    """From where the server keeps its WAL for the slot; a checkpoint lets it move."""
    ((lsn,),) = rig.server.execute("CHECKPOINT", "SELECT restart_lsn::text FROM pg_replication_slots")
    return parse_lsn(lsn)


def copy_of(rig: CaptureRig, shape_id: str) -> dict[int, tuple[str | None, str | None]]:
    """The rows of a shape, as its log builds them up."""
    rows: dict[str, dict[str, str | None]] = {}
    for item in rig.items(shape_id):
        key = item.key or ""
        if item.operation == "delete":
            rows.pop(key)
        else:
            rows[key] = {**rows.get(key, {}), **(item.value or {})}
    return {int(row["id"] or 0): (row["bucket"], row["note"]) for row in rows.values()}


def test_nothing_is_lost_and_nothing_confirmed_early_whatever_is_killed(rig: tuple[CaptureRig, LocalBroker]) -> None:
    """At every moment the slot stands below all that is not flushed; at the end each log gives the table's rows."""
    capture_rig, broker = rig
    loop = ClosedLoop(capture_rig)
    first_restart_lsn = restart_lsn(capture_rig)
    for number, point in enumerate(POINTS):
        # The registry's points are passed while a shape is added, the others after some work.
        passes = "1" if "registry" in point else str(10 + 3 * number)
        process = capture_rig.start_process("tests.integration.killed_capture", point, passes)
        loop.run_until(lambda process=process: process.poll() is not None, point)  # type: ignore[misc]  # a default
        assert process.returncode == -9, f"{point}: {capture_rig.log()[-2000:]}"
        loop.tracker.restart(lost_checkpoint=number % 2 == 1)
        loop.step()
    process = capture_rig.start_process()
    before = len(capture_rig.fragments())
    loop.run_until(lambda: len(capture_rig.fragments()) > before + 10, "work")
    capture_rig.server.kill()
    capture_rig.server.start()
    broker.kill()
    loop.workload.step()
    loop.sample()
    broker.start()
    before = len(capture_rig.fragments())
    loop.run_until(
        lambda: process.poll() is not None or len(capture_rig.fragments()) > before + 10, "work after both were killed"
    )
    assert process.poll() is None, capture_rig.log()[-2000:]
    loop.finish()
    loop.run_until(lambda: restart_lsn(capture_rig) > first_restart_lsn, "restart_lsn to move")
    loop.finish()
    process.terminate()
    assert process.wait(30) == 0, capture_rig.log()[-2000:]
    check(capture_rig, loop)


def check(rig: CaptureRig, loop: ClosedLoop) -> None:
    table = {row[0]: (str(row[1]), row[2]) for row in rig.server.execute("SELECT id, bucket, note FROM rows")}
    assert len(table) > 100
    assert copy_of(rig, "all") == table
    assert copy_of(rig, "ones") == {key: row for key, row in table.items() if row[0] == "1"}
    assert copy_of(rig, "others") == {key: row for key, row in table.items() if row[0] in {"2", "3"}}
    owed = transactions(rig.changes())
    for sample in loop.samples:
        for lsn, shapes in owed.items():
            if lsn < sample.confirmed_lsn:
                unflushed = [
                    key for key, last in shapes.items() if sample.flushed.get(key, LogOffset.before_all()) < last
                ]
                assert not unflushed, f"seed {SEED}: {lsn} was confirmed at {sample.confirmed_lsn} before {unflushed}"
    assert len({sample.confirmed_lsn for sample in loop.samples}) > len(POINTS)
