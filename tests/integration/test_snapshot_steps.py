"""Snapshots of many shapes, in steps and attempts, on a real server: what fails, what is divided, what is kept."""

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pytest
from pyspark.sql import SparkSession

from flushtracker.errors import DecodeError, PostgresUnavailableError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shape_log.snapshot import read_plan, reading
from flushtracker.shape_log.snapshot.attempt_limits import too_large
from flushtracker.shape_log.snapshot.delta_snapshots import log_snapshots
from flushtracker.shape_log.snapshot.loop import SnapshotLoop
from flushtracker.shape_log.snapshot.read_job import ReadJob
from flushtracker.shape_log.snapshot.read_plan import ReadPlan
from flushtracker.shapes.definition import ShapeDefinition
from tests.support.seeds import every
from tests.support.snapshot_rig import SnapshotRig
from tests.support.waiting import wait_until

USERS: Final = ("public", "users")
ROWS: Final = 400
_WAITS: Final = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.fixture
def rig(postgres: LocalPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotRig:
    """Users on some pages, each of which is a range; a step has half of the ranges."""
    postgres.execute(
        "CREATE TABLE users (id int PRIMARY KEY, grp int, pad text)",
        "ALTER TABLE users REPLICA IDENTITY FULL",
        f"INSERT INTO users SELECT n, n % 7, repeat('x', 100) FROM generate_series(1, {ROWS}) n",  # noqa: S608
    )
    monkeypatch.setattr(read_plan, "PAGES_PER_RANGE", 1)
    monkeypatch.setattr(reading, "next_step", lambda done, ranges, *_: range(done, min(ranges, done + ranges // 2 + 1)))
    return SnapshotRig(postgres, tmp_path)


def loop_of(spark: SparkSession, rig: SnapshotRig) -> SnapshotLoop:
    return log_snapshots(spark, rig.config(), Event())


def ids(rig: SnapshotRig, shape_id: str) -> list[int]:
    return sorted(int(row["id"] or 0) for row in rig.items(shape_id))


def before_steps(monkeypatch: pytest.MonkeyPatch, act: Callable[[range], None]) -> None:
    """Have ``act`` called before each step, with its ranges."""
    start: Callable[[ReadJob], None] = ReadJob.start

    def act_and_start(job: ReadJob) -> None:
        act(job._numbers)
        start(job)

    monkeypatch.setattr(ReadJob, "start", act_and_start)


class WaitingLock:
    """A session that waits for a lock which only the exporting transaction holds back, as ALTER TABLE does."""

    def __init__(self, server: LocalPostgres) -> None:
        self.errors = list[Exception]()
        self._server = server
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()
        wait_until(lambda: server.execute(_WAITS), "a session that waits for a lock", timeout_s=60, pause_s=0.02)

    def _run(self) -> None:
        try:
            self._server.execute("BEGIN; LOCK TABLE users; COMMIT")
        except Exception as error:  # noqa: BLE001  for the test to inspect
            self.errors.append(error)

    def end(self) -> None:
        self._server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        self.thread.join(60)


def test_step_that_fails_is_read_again_and_those_before_it_are_not(
    rig: SnapshotRig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the same snapshot: what was deleted meanwhile is still there."""
    steps, locks = list[range](), list[WaitingLock]()

    def disturb(numbers: range) -> None:
        steps.append(numbers)
        if len(steps) == 2:
            rig.server.execute("DELETE FROM users")
            locks.append(WaitingLock(rig.server))
        elif locks:
            locks.pop().end()

    before_steps(monkeypatch, disturb)
    rig.define(ShapeDefinition("all", USERS), ShapeDefinition("some", USERS, where="grp = 3"))
    caplog.set_level("INFO")
    loop_of(spark, rig).run()
    assert ids(rig, "all") == list(range(1, ROWS + 1))
    assert ids(rig, "some") == [n for n in range(1, ROWS + 1) if n % 7 == 3]
    assert [step.start for step in steps] == [0, steps[0].stop, steps[0].stop]
    assert f"snapshot step retried ranges_done={steps[0].stop}: " in caplog.text
    assert caplog.text.count("snapshot started") == 1


@every(2, 1)
def test_what_waits_for_the_table_gets_it_and_the_attempt_is_made_again(
    rig: SnapshotRig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise everybody who uses the table would wait behind an ALTER TABLE until the snapshot is taken."""
    steps, locks = list[range](), list[WaitingLock]()

    def disturb(numbers: range) -> None:
        steps.append(numbers)
        if len(steps) == 2:
            locks.append(WaitingLock(rig.server))

    before_steps(monkeypatch, disturb)
    rig.define(ShapeDefinition("all", USERS))
    caplog.set_level("INFO")
    loop_of(spark, rig).run()
    (lock,) = locks
    lock.thread.join(60)
    assert (lock.thread.is_alive(), lock.errors) == (False, [])
    assert ids(rig, "all") == list(range(1, ROWS + 1))
    assert [step.start > 0 for step in steps] == [False, True, True, True, False, True]
    assert "snapshot retried table=public.users: " in caplog.text
    assert "could not obtain lock" in caplog.text


def test_one_shape_of_many_fails_and_the_others_end(rig: SnapshotRig, spark: SparkSession) -> None:
    """In one attempt, though it fails in the second step: the log has nothing of it, and its failure is shown."""
    shapes = [ShapeDefinition(f"grp-{n}", USERS, ("id",), f"grp = {n % 7} AND id > {n // 7}") for n in range(40)]
    divides = ShapeDefinition("divides", USERS, where=f"10 / (id - {ROWS}) < 1")
    rig.define(*shapes, divides)
    loop = loop_of(spark, rig)
    with pytest.raises(DecodeError, match=r"no snapshot of divides: .*division by zero"):
        loop.run()
    for n in range(40):
        assert ids(rig, f"grp-{n}") == [row for row in range(n // 7 + 1, ROWS + 1) if row % 7 == n % 7]
    assert rig.rows("divides") == []
    assert len({row["chunk"] for n in range(40) for row in rig.rows(f"grp-{n}")}) == 1
    status = loop.live.read()
    (failure,) = status.failures
    assert (failure.shape_id, failure.table, failure.tries) == ("divides", "public.users", 1)
    assert "division by zero" in failure.reason
    assert failure.retry_at_ms > failure.since_ms
    (table,) = status.tables
    assert (table.shapes_left, table.shapes_taken) == (1, 40)
    assert table.rows == sum(len(rig.items(f"grp-{n}")) for n in range(40))
    assert status.attempt is None


def test_attempt_that_is_too_large_is_divided(
    rig: SnapshotRig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it fits; later attempts on the table begin with what fits."""

    def require_fitting(plan: ReadPlan, done: int, seconds: float, most_s: float) -> None:
        if len(plan.shapes) > 2:
            raise too_large(plan, done, seconds, most_s)

    monkeypatch.setattr(reading, "require_fitting", require_fitting)
    rig.define(*(ShapeDefinition(f"grp-{n}", USERS, where=f"grp = {n}") for n in range(5)))
    caplog.set_level("INFO")
    loop_of(spark, rig).run()
    for n in range(5):
        assert ids(rig, f"grp-{n}") == [row for row in range(1, ROWS + 1) if row % 7 == n]
    attempts = [{row["chunk"] for row in rig.rows(f"grp-{n}")} for n in range(5)]
    assert attempts == [attempts[0], attempts[0], attempts[2], attempts[2], attempts[4]]
    assert len(set.union(*attempts)) == 3
    assert [f"snapshot divided table=public.users shapes={n}: " in caplog.text for n in (5, 3, 2)] == [
        True,
        True,
        False,
    ]


def test_two_thousand_shapes_of_a_table_end(
    rig: SnapshotRig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In four attempts, each with one pass over the table: not one for each shape."""
    steps = list[range]()
    before_steps(monkeypatch, steps.append)
    rig.define(*(ShapeDefinition(f"user-{n:04}", USERS, ("id",), f"id % 2000 = {n}") for n in range(2_000)))
    loop = loop_of(spark, rig)
    loop.run()
    ((pages,),) = rig.server.execute("SELECT pg_relation_size('users') / 8192")
    assert sum(map(len, steps)) == 4 * pages
    assert [step.start for step in steps].count(0) == 4
    for n in (0, 1, 399, 400, 401, 1_999):
        assert ids(rig, f"user-{n:04}") == ([n] if 1 <= n <= ROWS else [])
    (table,) = loop.live.read().tables
    assert (table.shapes_left, table.shapes_taken, table.rows) == (0, 2_000, ROWS)


@every(2, 0)
def test_shape_that_fails_is_tried_again_later_and_does_not_hold_up_others(
    rig: SnapshotRig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failure is logged; others are taken meanwhile, and it itself once that is possible."""
    monkeypatch.setattr("flushtracker.shape_log.snapshot.failed_shapes.FIRST_WAIT_MS", 50)
    rig.settings["trigger"] = "50 ms"
    rig.define(ShapeDefinition("divides", USERS, where="10 / (id - 5) < 1"))
    stop = Event()
    loop = log_snapshots(spark, rig.config(), stop)
    thread = Thread(target=loop.run)
    thread.start()
    try:
        wait_until(lambda: any(each.tries > 1 for each in loop.live.read().failures), "a second try", timeout_s=120)
        rig.define(ShapeDefinition("fine", USERS))
        wait_until(lambda: rig.rows("fine"), "the snapshot of another shape", timeout_s=120)
        assert loop.live.read().failed_shapes == 1
        rig.server.execute("DELETE FROM users WHERE id = 5")
        wait_until(lambda: rig.rows("divides"), "its own snapshot", timeout_s=120)
        wait_until(lambda: not loop.live.read().failures, "the status without it", timeout_s=60)
    finally:
        stop.set()
        thread.join(60)
    assert (
        caplog.text.count(
            "shapes=divides: public.users: where cannot be evaluated for a row because of a division by zero"
        )
        >= 2
    )
    assert PostgresUnavailableError.__name__ not in caplog.text
