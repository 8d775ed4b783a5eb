"""``LogTrace`` accepts what production code does to a shape log, and refuses steps that the model does not allow."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from deltalake import Transaction

from flushtracker.delta.commits import Commits
from flushtracker.delta.data_file import WrittenFile
from flushtracker.events.stream_events import FlushNotification
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.claim import APP_ID, LogClaim
from flushtracker.shape_log.table.cut_log import CUT_APP_ID
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.snapshots import REPLACED_APP_ID, end_rows
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.log_trace import LogTrace
from tests.support.sample_registry import register, shape_entry
from tests.support.shape_log_rows import SOURCE, Row, append, arrow, commit, item, snapshot_rows
from tests.support.shape_transactions import Transactions

_MERGES = MergeSettings(merge_files=3, files_per_run=2, least_file_bytes=1)
_LATER = datetime(2026, 1, 3, tzinfo=timezone.utc)


class TracedLog:
    """A log with writers, and the trace that judges it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "log")
        self.table = create_shape_log(self.path)
        self.files = LogFiles(self.table, {})
        self.trace = LogTrace(folder / "log", ["users"])

    def publish(self, *txns: int) -> None:
        for tx in txns:
            self.trace.rules.publish("users", [LogOffset(tx, 0), LogOffset.last_of(tx)])

    def claim(self) -> LogClaim:
        claim = LogClaim(create_shape_log(self.path))
        claim.take()
        return claim

    def append(self, claim: LogClaim, batch_id: int, *txns: int) -> None:
        claim.append([self.written(rows_of(*txns))], claim.version_of(batch_id))

    def written(self, rows: Iterable[Row]) -> WrittenFile:
        return WrittenFile(self.files.write(arrow(rows), None, is_change=True))

    def commit(self, rows: Iterable[Row], app_id: str, version: int) -> None:
        """Append rows as no writer of ours does."""
        self.table.update_incremental()
        Commits().commit(self.table, [self.written(rows).action], [Transaction(app_id, version)])

    def upkeep(self, **settings: RetentionPolicy) -> None:
        ShapeLogUpkeep(self.path, f"{self.path}_shapes", settings=_MERGES, **settings).run(_LATER)  # type: ignore[arg-type]

    def judge(self) -> dict[str, int]:
        for step in self.trace.steps():
            self.trace.take(step)
        return dict(self.trace.counts)

    def refusal(self) -> str:
        return refusal(self.judge)

    def notify(self, tx: int, op: int, at_ms: int | None = None) -> None:
        now_ms = time.time_ns() // 1_000_000
        event = FlushNotification(SOURCE, "flushed", "users", LogOffset(tx, op), "log")
        self.trace.notify(event, now_ms if at_ms is None else at_ms)


def rows_of(*txns: int) -> list[Row]:
    """Transaction 10 inserts a row, 20 deletes it, 30 inserts another one, and so on."""
    return [row for tx in txns for row in (_change(tx), commit(tx))]


def _change(tx: int) -> Row:
    if tx % 20 == 0:
        return item((tx, 0), "delete", str(tx - 10), {"id": str(tx - 10)})
    return item((tx, 0), "insert", str(tx), {"id": str(tx)})


def refusal(decide: Callable[[], object]) -> str:
    with pytest.raises(AssertionError) as refused:
        decide()
    return str(refused.value).splitlines()[0]


@pytest.fixture
def log(tmp_path: Path) -> TracedLog:
    return TracedLog(tmp_path)


def test_claims_appends_merges_folds_and_notifications_of_ours_are_steps_of_the_model(log: TracedLog) -> None:
    definition = ShapeDefinition("users", ("public", "users"), snapshot=False)
    register(log.path, replace(shape_entry(), definition=definition))
    log.publish(*range(10, 90, 10))
    first = log.claim()
    for batch_id, tx in enumerate(range(10, 50, 10)):
        log.append(first, batch_id, tx)
    log.upkeep()
    second = log.claim()
    log.append(second, 7, 50, 60)
    assert log.judge() == {"claims": 2, "appends": 5, "merges": 1}
    log.notify(60, LogOffset.last_of(60).op_offset)
    log.upkeep(retain=RetentionPolicy(timedelta(0), least_dropped=1))
    log.append(second, 9, 70)
    log.upkeep(retain=RetentionPolicy(timedelta(0), least_dropped=1))
    assert log.judge() == {"claims": 2, "appends": 6, "merges": 2, "notifications": 1, "folds": 2}
    assert log.trace.rules.shape("users").end == LogOffset.last_of(70)


def test_snapshot_is_a_step_of_the_model_if_it_contains_what_the_one_before_does(log: TracedLog) -> None:
    log.publish(10, 20)
    log.append(log.claim(), 0, 10, 20)
    snapshot = ShapeSnapshot(1, MvccSnapshot.parse("11:11:"), lsn=15, next_xid=15)
    rows = snapshot_rows(snapshot, {"10": {"id": "10"}})
    log.files.append_snapshot([log.written(rows)], {(SOURCE, "users"): snapshot})
    assert log.judge() == {"claims": 1, "appends": 1, "snapshots": 1}
    log.commit(snapshot_rows(ShapeSnapshot(2, MvccSnapshot.parse("5:5:"), lsn=15, next_xid=15), {}), REPLACED_APP_ID, 2)
    assert log.refusal() == "snapshot 2 of users lacks 0/A+0, which was contained"


def test_events_as_published_are_what_may_be_appended(log: TracedLog) -> None:
    """However a transaction is cut; its commit is a row of its own."""
    stream = Transactions("users")
    stream.grow(3)
    for event in stream.events(list(stream.items)):
        log.trace.publish(event)
    rows = [item(row[:2], row[2], "k", {}) for row in stream.expected_rows()]
    claim = log.claim()
    claim.append([log.written(rows[:4])], claim.version_of(0))
    claim.append([log.written(rows[4:])], claim.version_of(1))
    assert log.judge() == {"claims": 1, "appends": 2}


def test_append_of_a_fenced_writer_is_refused(log: TracedLog) -> None:
    log.publish(10, 20)
    first = log.claim()
    log.append(first, 0, 10)
    log.claim()
    log.commit(rows_of(20), APP_ID, first.version_of(1))
    assert log.refusal() == "the writer with claim 1 appends, but 2 has claimed the log"


@pytest.mark.parametrize(
    ("txns", "expected"),
    [
        ((10, 20), "shape users gets 0/A+0 again: its log ends at 0/A+inf"),
        ((30,), "shape users is appended up to 0/1E+inf, but 0/14+0 is missing, or unpublished"),
        ((20, 50), "shape users is appended up to 0/32+inf, but 0/1E+0 is missing, or unpublished"),
    ],
)
def test_row_that_is_twice_missing_or_unpublished_is_refused(
    log: TracedLog, txns: tuple[int, ...], expected: str
) -> None:
    log.publish(10, 20, 30)
    claim = log.claim()
    log.append(claim, 0, 10)
    log.append(claim, 1, *txns)
    assert log.refusal() == expected


def test_notification_before_its_rows_are_durable_is_refused(log: TracedLog) -> None:
    """Also if they are there by the time that somebody looks."""
    log.publish(10, 20)
    log.append(log.claim(), 0, 10)
    log.judge()
    assert refusal(lambda: log.notify(20, 0)) == "shape users is notified up to 0/14+0, but its log ends at 0/A+inf"
    log.notify(10, 0)
    assert "before its log had that" in refusal(lambda: log.notify(10, 0, at_ms=1))


def test_notification_that_goes_back_is_refused(log: TracedLog) -> None:
    log.publish(10, 20)
    log.append(log.claim(), 0, 10, 20)
    log.judge()
    log.notify(20, 0)
    assert refusal(lambda: log.notify(10, 0)) == "the notification of users went back from 0/14+0 to 0/A+0"


def test_commit_that_is_no_step_of_the_model_is_refused(log: TracedLog) -> None:
    append(log.path, rows_of(10))
    assert "changes data, and is no step of the model" in log.refusal()


def test_cut_changes_nothing_that_the_model_is_about(log: TracedLog) -> None:
    """One that has rows, too, is refused."""
    name = CUT_APP_ID.format(registry="r", source=SOURCE)
    Commits().commit(log.table, [], [Transaction(name, 10)])
    assert log.judge() == {"cuts": 1}
    log.commit(rows_of(10), name, 20)
    assert "records a cut, and does more" in log.refusal()


def test_merge_that_loses_a_row_is_refused(log: TracedLog) -> None:
    log.publish(10, 20)
    log.append(log.claim(), 0, 10, 20)
    log.judge()
    file = log.files.write(arrow(rows_of(10)), (1, 0))
    assert log.files.replace(log.files.current(), [file])
    assert "merges to other rows" in log.refusal()


@pytest.mark.parametrize(
    ("horizon", "rows", "kept", "expected"),
    [
        (30, {"30": {"id": "30"}}, rows_of(30)[1:] + rows_of(40), None),
        (30, {}, rows_of(30)[1:] + rows_of(40), "has other rows than the log had"),
        (30, {"30": {"id": "30"}}, rows_of(30)[1:], "removes other rows"),
        (50, {}, [], "where no transaction has ended"),
    ],
)
def test_fold_has_the_rows_of_its_horizon_and_removes_no_other(
    log: TracedLog, horizon: int, rows: dict[str, dict[str, str | None]], kept: list[Row], expected: str | None
) -> None:
    log.publish(10, 20, 30, 40)
    log.append(log.claim(), 0, 10, 20, 30, 40)
    log.judge()
    fold = ShapeSnapshot.fold(1, horizon, 30)
    new = [log.written(each).action for each in (snapshot_rows(fold, rows), kept) if each]
    transaction = log.files.next_snapshot()
    assert log.files.replace(log.files.current(), new, is_deletion=True, transaction=transaction)
    if expected is None:
        assert log.judge() == {"claims": 1, "appends": 1, "folds": 1}
    else:
        assert expected in log.refusal()


def test_snapshots_are_committed_one_after_the_other(log: TracedLog) -> None:
    """A number that is left out is a commit that does not know the one before."""
    end = end_rows({(SOURCE, "users"): ShapeSnapshot(1, MvccSnapshot.parse("5:5:"), 15, 15)}, _LATER).to_pylist()
    log.commit(end, REPLACED_APP_ID, 2)
    assert log.refusal() == "commit 2 of snapshots follows 0"
