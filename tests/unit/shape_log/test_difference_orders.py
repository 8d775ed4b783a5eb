"""Followers and differences in single orders of events: offsets, bounds, and what the log no longer tells."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from flushtracker.errors import ConfigError, PositionError, SinkError, SnapshotMissingError
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import ShapeLogReader, read_shape, read_shape_log
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.sample_registry import taken
from tests.support.shape_log_rows import SOURCE, append, commit, item, snapshot_rows

_BEGIN_AGAIN = "read the shape again from its beginning"
_FIRST = {"k": {"id": "k", "v": "1"}}


def begun(attempt: int, lsn: int, starts_after: int, incarnation: int = 2) -> ShapeSnapshot:
    return replace(taken(attempt, f"{lsn}:{lsn}:", lsn), incarnation=incarnation, starts_after=starts_after)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A snapshot of attempt 1, and a transaction at 904, both of which a follower has read."""
    uri = str(tmp_path / "log")
    create_shape_log(uri)
    append(uri, snapshot_rows(taken(1, "9:9:", 9), _FIRST))  # type: ignore[arg-type]
    append(uri, [item((904, 0), "insert", "m", {"id": "m", "v": "1"}), commit(904)])
    return uri


_READ = Position(SOURCE, 904, 1)


def changes(read: Any) -> list[tuple[int, str, str | None]]:
    return [(row["tx_offset"], row["operation"], row["key"]) for row in read.rows.to_pylist()]


def rows(log: str, at: LogOffset | None = None) -> dict[str, Any]:
    return {row["id"]: row["v"] for row in read_shape(log, "users", at).rows.to_pylist()}


def test_whoever_has_read_everything_gets_a_snapshot_that_is_taken_again(log: str) -> None:
    """Once: then it has the new attempt. What the log has since comes with the next read, which has_changed tells."""
    append(log, snapshot_rows(taken(2, "21:21:", 30), {"k": {"id": "k", "v": "right"}, "m": {"id": "m", "v": "1"}}))
    append(log, [item((944, 0), "insert", "n", {"id": "n"}), commit(944)])
    reader = ShapeLogReader(log)
    healed = reader.read_log("users", _READ)
    assert changes(healed) == [(905, "update", "k"), (905, "commit", None)]
    assert (healed.bound, healed.position) == (LogOffset.last_of(905), Position(SOURCE, 905, 2))
    assert reader.has_changed()
    later = reader.read_log("users", healed.position)
    assert (changes(later), later.position) == ([(944, "insert", "n"), (944, "commit", None)], Position(SOURCE, 944, 2))
    assert not reader.has_changed()
    assert changes(reader.read_log("users", later.position)) == []


def test_a_fold_is_followed_only_from_the_snapshot_that_it_was_made_from(log: str) -> None:
    """Who has that continues; who has one before it begins again."""
    again = taken(2, "21:21:", 30)
    folds = (
        ShapeSnapshot.fold(3, 904, 904, again),
        ShapeSnapshot.fold(4, 904, 904, ShapeSnapshot.fold(3, 904, 9, again)),
    )
    for fold in folds:
        append(log, snapshot_rows(fold, {"k": {"id": "k", "v": "right"}, "m": {"id": "m"}}))
        assert read_shape_log(log, "users", replace(_READ, attempt=2)).position == replace(_READ, attempt=2)
        with pytest.raises(PositionError, match=_BEGIN_AGAIN):
            read_shape_log(log, "users", _READ)


def test_offsets_of_differences_go_up(log: str) -> None:
    """Also after transactions of before that arrive late, a snapshot taken again, and a start at the same place."""
    position, seen = _READ, [904]
    for number, snapshot in enumerate([begun(3, 1100, 1000), begun(4, 1300, 1000), begun(5, 1300, 1000, 3)]):
        append(log, snapshot_rows(snapshot, {"k": {"id": "k", "v": f"of {number}"}}))
        read = read_shape_log(log, "users", position)
        assert read.bound == LogOffset.last_of(read.position.tx_offset)
        seen += [tx for tx, operation, _ in changes(read) if operation == "commit"]
        append(log, [item((952 + 8 * number, 0), "delete", "m", {"id": "m"}), commit(952 + 8 * number)])
        position = read_shape_log(log, "users", read.position).position
    assert (seen, position) == ([904, 1000, 1001, 1002], Position(SOURCE, 1002, 5))
    append(log, [item((1320, 0), "delete", "k", {"id": "k"}), commit(1320)])
    assert changes(read_shape_log(log, "users", position)) == [(1320, "delete", "k"), (1320, "commit", None)]


def test_no_difference_has_an_offset_at_which_a_transaction_may_commit(log: str) -> None:
    """After seven in a row with nothing between, the follower begins again."""
    position = _READ
    for attempt in range(2, 9):
        append(log, snapshot_rows(taken(attempt, "21:21:", 30), {"k": {"id": "k", "v": str(attempt)}}))
        position = read_shape_log(log, "users", position).position
        assert position == Position(SOURCE, 903 + attempt, attempt)
    append(log, snapshot_rows(taken(9, "21:21:", 30), {}))
    with pytest.raises(PositionError, match=_BEGIN_AGAIN):
        read_shape_log(log, "users", position)
    append(log, snapshot_rows(begun(10, 1100, 911), {}))
    with pytest.raises(PositionError, match=_BEGIN_AGAIN):
        read_shape_log(log, "users", position)


def test_the_bound_of_an_incarnation_without_transactions_is_its_start(log: str) -> None:
    """It gives the same rows again, and not those of before; a lower offset gives those."""
    append(log, snapshot_rows(begun(3, 1100, 1007), {"k": {"id": "k", "v": "new"}}))
    read = read_shape(log, "users")
    assert (read.bound, read.position) == (LogOffset.last_of(1007), Position(SOURCE, 1000, 3))
    assert rows(log, read.bound) == {"k": "new"}
    assert rows(log, LogOffset.last_of(904)) == {"k": "1", "m": "1"}
    with pytest.raises(ConfigError, match="no longer has what it had there"):
        rows(log, LogOffset.last_of(1000))


def test_an_offset_is_told_by_an_older_snapshot_also_if_it_is_the_last_of_the_log(log: str) -> None:
    """The new one has a transaction that the log has yet to get."""
    append(log, snapshot_rows(taken(2, "921:921:", 930), {"k": {"id": "k", "v": "920"}}))
    assert [rows(log)["k"], rows(log, LogOffset.last_of(904))["k"]] == ["920", "1"]
    append(log, [item((920, 0), "update", "k", {"v": "920"}), commit(920)])
    assert rows(log, LogOffset.last_of(904)) == {"k": "1", "m": "1"}


def test_an_offset_that_no_snapshot_tells_is_an_error(tmp_path: Path) -> None:
    """The first incarnation's snapshot is above it, or the next one has none; a later one has other rows."""
    log = str(tmp_path / "log")
    create_shape_log(log)
    append(log, snapshot_rows(taken(1, "9:9:", 950), _FIRST))  # type: ignore[arg-type]
    append(log, [item((904, 0), "insert", "m", {"id": "m"}) | {"xid": 8}, commit(904) | {"xid": 8}])
    append(log, snapshot_rows(ShapeSnapshot.mark(2, 2), {}))
    append(log, [item((1016, 0), "insert", "q", {"id": "q"}), commit(1016)])
    append(log, snapshot_rows(begun(4, 1200, 1100, 3), {"k": {"id": "k", "v": "3"}}))
    for at in (904, 1016):
        with pytest.raises(ConfigError, match="no longer has what it had there"):
            rows(log, LogOffset.last_of(at))


def test_a_difference_is_read_when_the_read_returns(log: str) -> None:
    """Its files may be gone before its rows are taken; and if they are gone before, the read says so."""
    append(log, snapshot_rows(begun(3, 1100, 1000), {}))
    reader = ShapeLogReader(log)
    read = reader.read_log("users", _READ)
    files = list(Path(log).rglob("*.parquet"))
    for file in files:
        file.rename(f"{file}.gone")
    assert changes(read) == [(1000, "delete", "k"), (1000, "delete", "m"), (1000, "commit", None)]
    with pytest.raises(SinkError, match="cannot be read"):
        reader.read_log("users", _READ)


def test_a_follower_of_a_log_that_is_deleted_is_told(log: str) -> None:
    """Whether it begins again in the same source, with attempts that are used again, or in another."""
    DeltaTable(log).delete()
    with pytest.raises(ConfigError, match="has no shape users"):
        read_shape_log(log, "users", _READ)
    append(log, snapshot_rows(ShapeSnapshot.mark(1, 2), {}))
    with pytest.raises(PositionError, match=f"no longer has what it had there: {_BEGIN_AGAIN}"):
        read_shape_log(log, "users", replace(_READ, attempt=7))
    for attempt in (2, 3):
        append(log, snapshot_rows(begun(attempt, 1100, 1000), {"k": {"id": "k"}}))
        with pytest.raises(PositionError, match=f"no longer has what it had there: {_BEGIN_AGAIN}"):
            read_shape_log(log, "users", replace(_READ, attempt=attempt))
    DeltaTable(log).delete()
    append(log, [row | {"source": f"{SOURCE}/1"} for row in snapshot_rows(taken(1, "9:9:", 9), {})])
    problem = f"was begun again under source {SOURCE}/1; the log no longer has what it had there: {_BEGIN_AGAIN}"
    with pytest.raises(PositionError, match=problem):
        read_shape_log(log, "users", _READ)


def test_transactions_of_before_are_left_out_though_their_xids_come_again(log: str) -> None:
    """By an xid of 32 bits alone, one would be as new as one that the snapshot does not see."""
    append(log, [item((912, 0), "update", "k", {"v": "old"}) | {"xid": 105}, commit(912) | {"xid": 105}])
    visible = MvccSnapshot(2**32 + 100, 2**32 + 110, (2**32 + 105,))
    snapshot = ShapeSnapshot(3, visible, 1100, 2**32 + 110, None, 2, 1000)
    append(log, snapshot_rows(snapshot, {"k": {"id": "k", "v": "new"}}))
    assert rows(log) == {"k": "new"}
    assert [snapshot.contains(tx, 105) for tx in (0, 912, 1000, 1008)] == [False, True, True, False]
    append(log, [item((1048, 0), "update", "k", {"v": "newer"}) | {"xid": 105}, commit(1048) | {"xid": 105}])
    assert rows(log) == {"k": "newer"}


def test_a_follower_of_changes_alone_gets_no_difference(log: str) -> None:
    """Its position has no attempt. It continues as long as the log has all changes, and else is told."""
    read = read_shape_log(log, "users", changes_only=True)
    assert read.position == Position(SOURCE, 904, 0)
    append(log, [commit(912)])
    for after in (read.position, _READ):
        later = read_shape_log(log, "users", after, changes_only=True)
        assert (changes(later), later.position) == ([(912, "commit", None)], Position(SOURCE, 912, 0))
    with pytest.raises(PositionError, match="had a snapshot of its table"):
        read_shape_log(log, "users", read.position)
    append(log, snapshot_rows(taken(2, "905:905:", 908), {}))
    assert changes(read_shape_log(log, "users", later.position, changes_only=True)) == []
    append(log, snapshot_rows(taken(3, "913:913:", 914), {}))
    assert changes(read_shape_log(log, "users", read.position, changes_only=True)) == [(912, "commit", None)]
    problem = f"of changes alone is from before .*, or {_BEGIN_AGAIN}"
    append(log, snapshot_rows(ShapeSnapshot.mark(4, 2), {}))
    with pytest.raises(SnapshotMissingError):
        read_shape_log(log, "users", later.position, changes_only=True)
    append(log, snapshot_rows(begun(5, 1100, 1007), {"m": {"id": "m"}}))
    with pytest.raises(PositionError, match=problem):
        read_shape_log(log, "users", later.position, changes_only=True)
    again = read_shape_log(log, "users", changes_only=True)
    append(log, [item((1016, 0), "delete", "m"), commit(1016)])
    found = read_shape_log(log, "users", again.position, changes_only=True)
    assert (again.position, found.position) == (Position(SOURCE, 1007, 0), Position(SOURCE, 1016, 0))
    assert changes(found) == [(1016, "delete", "m"), (1016, "commit", None)], "though the snapshot contains it"
    append(log, [item((1208, 0), "insert", "z", {"id": "z"}), commit(1208)])
    append(log, snapshot_rows(replace(ShapeSnapshot.fold(6, 1208, 1208, begun(5, 1100, 1007))), {}))
    append(log, snapshot_rows(begun(7, 1300, 1007), {}))
    assert changes(read_shape_log(log, "users", replace(found.position, tx_offset=1208), changes_only=True)) == []
    with pytest.raises(PositionError, match=problem):
        read_shape_log(log, "users", found.position, changes_only=True)


def test_a_shape_without_a_snapshot_does_not_continue_under_another_source(tmp_path: Path) -> None:
    """Nothing tells the rows that its table had, whether its log is folded or not."""
    log, other = str(tmp_path / "log"), f"{SOURCE}/1"
    create_shape_log(log)
    append(log, snapshot_rows(ShapeSnapshot.fold(1, 904, 904), {"k": {"id": "k"}}))
    append(log, [commit(904), item((56, 0), "insert", "z", {"id": "z"}, source=other), commit(56, source=other)])
    for _ in range(2):
        with pytest.raises(PositionError, match=f"no longer has what it had there: {_BEGIN_AGAIN}"):
            read_shape_log(log, "users", _READ)
        fold = snapshot_rows(ShapeSnapshot.fold(1, 56, 56), {"z": {"id": "z"}})
        append(log, [row | {"source": other} for row in fold])


def test_a_replay_of_a_difference_after_another_resync_is_another_one(log: str) -> None:
    """Whoever stores rows without the position may then have both; so the two belong into one transaction."""
    append(log, snapshot_rows(begun(3, 1100, 1000), {"k": {"id": "k", "v": "2"}}))
    first = read_shape_log(log, "users", _READ)
    append(log, snapshot_rows(begun(5, 1300, 1200, 3), _FIRST))  # type: ignore[arg-type]
    second = read_shape_log(log, "users", _READ)
    assert [json.loads(row["value"] or "{}").get("v") for row in first.rows.to_pylist()] == ["1", "2", None]
    assert changes(second) == [(1200, "delete", "m"), (1200, "commit", None)]
    assert changes(read_shape_log(log, "users", first.position)) == [(1200, "update", "k"), (1200, "commit", None)]
    assert OP_INFINITY in second.rows["op_offset"].to_pylist()
