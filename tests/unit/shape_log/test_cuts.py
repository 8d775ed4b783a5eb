"""Cuts: when one is noted, and what readers of several shapes get of it."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from flushtracker.config.streams import SHAPE_CHANGES, SHAPES
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import (
    ConfigError,
    CutMissingError,
    ShapeEndedError,
    SinkError,
    SnapshotMissingError,
    StateError,
)
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.cut_log import CUT_APP_ID, CutLog
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.joined_rows import joined_shape_rows
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import ShapeLogReader, ShapesRead, read_shapes
from flushtracker.shape_log.write.cuts import CutInputs, Cuts
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.sample_registry import shape_entry, taken
from tests.support.shape_log_rows import SOURCE, append, commit, item, snapshot_rows

_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def entry(shape_id: str, **changed: object) -> ShapeEntry:
    found = shape_entry(shape_id, **changed)
    return replace(found, definition=replace(found.definition, snapshot=False))


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Transactions 10 and 20 of ``users`` and ``orders``, 30 and 40 of ``users`` alone."""
    uri = str(tmp_path / "log")
    create_shape_log(uri)
    for tx, shape_ids in ((10, ("users", "orders")), (20, ("users", "orders")), (30, ("users",)), (40, ("users",))):
        for shape_id in shape_ids:
            append(
                uri,
                [item((tx, 0), "insert", str(tx), {"id": str(tx)}, shape_id=shape_id), commit(tx, shape_id=shape_id)],
            )
    register(uri, entry("users"), entry("orders"))
    return uri


def register(log: str, *entries: ShapeEntry) -> None:
    RegistryTable(f"{log}_shapes", create=True).append([each.to_json() for each in entries], _NOW)


def note(log: str, cut: int, source: str = SOURCE) -> Mapping[str, int]:
    return CutLog(log, RegistryTable(f"{log}_shapes")).note({source: cut})


def ids(read: ShapesRead) -> dict[str, list[str]]:
    return {shape_id: [row["id"] for row in found.rows.to_pylist()] for shape_id, found in read.shapes.items()}


def test_all_shapes_are_read_as_of_the_cut(log: str) -> None:
    """A shape whose log goes further is read up to there, and one without a transaction since is complete."""
    note(log, 35)
    read = read_shapes(log, ["users", "orders"])
    assert (read.source, read.lsn) == (SOURCE, 35)
    assert ids(read) == {"users": ["10", "20", "30"], "orders": ["10", "20"]}
    assert {each.bound for each in read.shapes.values()} == {LogOffset.last_of(30), LogOffset.last_of(20)}


def test_a_cut_never_goes_back(log: str) -> None:
    """Two jobs may note at the same time, and an ack may have been read long before."""
    assert note(log, 35) == {SOURCE: 35}
    assert note(log, 25) == note(log, 35) == {}
    assert read_shapes(log, ["users"]).lsn == 35


def test_without_a_cut_no_shapes_are_read_together(log: str) -> None:
    """Nor is the cut of another source one."""
    note(log, 35, "7301/1/others")
    with pytest.raises(CutMissingError, match="has no cut of source 7301/1/shapes"):
        read_shapes(log, ["users", "orders"])


def test_a_removed_shape_is_not_read(log: str) -> None:
    """The cut may be past its end, and its log is not complete up to there."""
    note(log, 35)
    register(log, entry("orders", removed_at=LogOffset(36, 0)))
    with pytest.raises(ShapeEndedError, match="shape orders of source 7301/1/shapes was removed by its owner"):
        read_shapes(log, ["users", "orders"])
    assert ids(read_shapes(log, ["users"])) == {"users": ["10", "20", "30"]}


def test_a_shape_that_starts_after_the_cut_is_not_read(log: str) -> None:
    """It has no rows there yet, which is not what its query has."""
    note(log, 35)
    register(log, entry("new", starts_after=LogOffset(36, 0)))
    append(log, [item((40, 0), "insert", "40", {"id": "40"}, shape_id="new"), commit(40, shape_id="new")])
    with pytest.raises(CutMissingError, match=r"complete up to 0/23, but what it has of shape new .* begins at 0/24"):
        read_shapes(log, ["users", "new"])
    note(log, 36)
    assert ids(read_shapes(log, ["users", "new"])) == {"users": ["10", "20", "30"], "new": []}


def test_a_snapshot_is_read_from_the_end_of_its_wal_on(log: str) -> None:
    """It may have what commits before that end, and lack some of it, which the log has: transaction 40 of xid 40."""
    note(log, 47)
    register(log, replace(entry("users"), definition=ShapeDefinition("users", ("public", "users"), snapshot=True)))
    with pytest.raises(SnapshotMissingError):
        read_shapes(log, ["users", "orders"])
    append(log, snapshot_rows(taken(7, "40:41:40", 49), {"1": {"id": "1"}}))
    with pytest.raises(CutMissingError, match=r"complete up to 0/2F, but .* begins at 0/30"):
        read_shapes(log, ["users", "orders"])
    note(log, 48)
    assert ids(read_shapes(log, ["users", "orders"])) == {"users": ["1", "40"], "orders": ["10", "20"]}


def test_a_fold_is_read_from_its_horizon_on(log: str) -> None:
    """What there was at an earlier cut is gone."""
    note(log, 29)
    append(log, snapshot_rows(ShapeSnapshot.fold(1, 30, 30), {"30": {"id": "30"}}))
    with pytest.raises(CutMissingError, match=r"complete up to 0/1D, but .* begins at 0/1E"):
        read_shapes(log, ["users"])
    note(log, 30)
    assert ids(read_shapes(log, ["users"])) == {"users": ["30"]}


def test_a_shape_that_begins_again_waits_for_its_snapshot(log: str) -> None:
    """Whether the log or the registry table is ahead: the other one has the incarnation before."""
    note(log, 35)
    append(log, snapshot_rows(ShapeSnapshot.mark(1, 2), {}))
    with pytest.raises(SnapshotMissingError, match="was begun again"):
        read_shapes(log, ["users", "orders"])
    definition = replace(entry("orders").definition, incarnation=2, snapshot=True)
    register(log, replace(entry("orders"), definition=definition, starts_after=LogOffset(32, 0)))
    with pytest.raises(SnapshotMissingError, match="was begun again"):
        read_shapes(log, ["orders"])


def test_shapes_need_a_registry_table_that_has_them_all(log: str) -> None:
    """Nobody else says that a shape is live; and no cut is of two sources."""
    note(log, 35)
    append(log, [item((10, 0), "insert", "1", {"id": "1"}, shape_id="unknown"), commit(10, shape_id="unknown")])
    with pytest.raises(ConfigError, match=r"shape unknown .* is not in the registry table"):
        read_shapes(log, ["users", "unknown"])
    other = replace(entry("other"), source="7301/1/others")
    register(log, other)
    with pytest.raises(ConfigError, match="sources 7301/1/others, 7301/1/shapes, which have no LSN in common"):
        read_shapes(log, ["users", "other"])
    with pytest.raises(ConfigError, match="name at least one"):
        read_shapes(log, [])
    with pytest.raises(ConfigError, match="named twice"):
        read_shapes(log, ["users", "users"])
    assert ids(read_shapes(log, "users")) == {"users": ["10", "20", "30"]}
    shutil.rmtree(f"{log}_shapes")
    with pytest.raises(ConfigError, match="has no registry table beside it"):
        read_shapes(log, ["users"])


def test_a_registry_table_that_has_gone_back_has_no_cut(log: str, tmp_path: Path) -> None:
    """An older copy, or one that was made anew, may lack a removal that the cut has passed."""
    copy = tmp_path / "copy"
    shutil.copytree(f"{log}_shapes", copy)
    register(log, entry("more"))
    note(log, 35)
    with pytest.raises(CutMissingError, match="copy is older than shape log"):
        read_shapes(log, ["users"], shapes=str(copy))
    copied = RegistryTable(str(copy))
    for number in range(3):
        copied.append([entry(f"later {number}").to_json()], _NOW + timedelta(hours=1))
    with pytest.raises(CutMissingError, match="copy is older than shape log"):
        read_shapes(log, ["users"], shapes=str(copy))
    with pytest.raises(SinkError, match="may lack ends of shapes"):
        CutLog(log, copied).note({SOURCE: 45})
    shutil.rmtree(f"{log}_shapes")
    register(log, entry("users"))
    with pytest.raises(CutMissingError, match="has no cut of source"):
        read_shapes(log, ["users"])
    note(log, 35)
    assert read_shapes(log, ["users"]).lsn == 35


class Looking:
    """What cuts are decided by; it notes the order of the looks."""

    def __init__(self) -> None:
        self.looks: list[str] = []
        self.acks = {SOURCE: 100}
        self.read: dict[str, dict[int, int]] | None = {SHAPES: {0: 7}, SHAPE_CHANGES: {0: 5, 1: 5}}
        self.ends: dict[str, dict[int, int]] = {SHAPES: {0: 7}, SHAPE_CHANGES: {0: 5, 1: 4}}
        self.begins: dict[str, dict[int, int]] = {SHAPES: {0: 0}}
        self.gaps: set[str] = set()
        self.noted: list[dict[str, int]] = []
        looks = CutInputs(
            lambda: self._look("acks", self.acks),
            lambda: self._look("read", self.read),
            lambda stream: self._look(f"begin of {stream}", self.begins[stream]),
            lambda stream: self._look(stream, self.ends[stream]),
            lambda: self._look("gaps", self.gaps),
        )
        self.cuts = Cuts(looks, self._note)

    def _look(self, name: str, found: Any) -> Any:
        self.looks.append(name)
        return found

    def _note(self, cuts: Mapping[str, int]) -> Mapping[str, int]:
        self.noted.append(dict(cuts))
        return cuts


def test_a_removal_may_be_published_between_any_two_looks() -> None:
    """The ack is read first, so whatever it has passed is in the topics when these are looked at."""
    looking = Looking()
    assert looking.cuts.advance() == {SOURCE: 100}
    assert looking.looks == ["acks", SHAPE_CHANGES, "read", SHAPES, f"begin of {SHAPES}", "gaps"]
    assert looking.cuts.advance() == {}


def test_an_ack_is_noted_once_the_registry_table_has_all_entries() -> None:
    """In every partition, neither less nor more than was seen at the end, and not before that is known."""
    looking = Looking()
    looking.ends[SHAPES] = {0: 7, 1: 0, 2: 3}
    looking.read = None
    assert looking.cuts.advance() == {}
    lacking: list[dict[int, int]] = [{}, {0: 7}, {0: 7, 2: 2}, {0: 6, 1: 1, 2: 3}, {0: 7, 2: 4}]
    for entries in lacking:
        looking.read = {SHAPES: entries, SHAPE_CHANGES: {0: 5, 1: 5}}
        assert looking.cuts.advance() == {}
    looking.read = {SHAPES: {0: 7, 2: 3}, SHAPE_CHANGES: {0: 5, 1: 5}}
    assert looking.cuts.advance() == {SOURCE: 100}
    looking.acks["other"] = 5
    assert looking.cuts.advance() == {"other": 5}
    assert looking.noted == [{SOURCE: 100}, {"other": 5}]


def test_an_ack_of_a_later_state_of_the_log_waits_until_that_is_written_again() -> None:
    """Log, registry table and checkpoint were restored together. What the topic gets meanwhile is not waited for."""
    looking = Looking()
    looking.read = {SHAPES: {0: 7}, SHAPE_CHANGES: {0: 5, 1: 3}}
    assert looking.cuts.advance() == {}
    looking.acks[SOURCE], looking.ends[SHAPE_CHANGES] = 200, {0: 9, 1: 9}
    assert looking.cuts.advance() == {}
    looking.read = {SHAPES: {0: 7}, SHAPE_CHANGES: {0: 6, 1: 4}}
    assert looking.cuts.advance() == {SOURCE: 100}
    assert looking.cuts.advance() == {}
    looking.read = {SHAPES: {0: 7}, SHAPE_CHANGES: {0: 9, 1: 9}}
    assert looking.cuts.advance() == {SOURCE: 200}


def test_removals_that_were_deleted_unread_are_not_passed() -> None:
    """Spark's offsets are past what is gone, so only where the topic begins tells; and that never goes back."""
    looking = Looking()
    looking.begins[SHAPES] = {0: 0, 1: 3}
    for _ in range(2):
        with pytest.raises(StateError, match="topic of shapes begins at Kafka offset 3 in partition 1"):
            looking.cuts.advance()
    assert looking.noted == []


def test_a_source_with_a_gap_has_no_new_cut() -> None:
    """Nothing past the gap is in the log, though an ack of before may be past it; other sources continue."""
    looking = Looking()
    looking.acks["other"], looking.gaps = 5, {SOURCE}
    assert looking.cuts.advance() == {"other": 5}
    looking.gaps.clear()
    assert looking.cuts.advance() == {SOURCE: 100}


def test_follower_reads_no_rows_again_for_a_cut(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a new version of the log, each second while other shapes are written."""
    reader = ShapeLogReader(log)
    first = reader.read_rows("users")
    folds = list[str]()

    def counted(table: DeltaTable, shape: FoundShape) -> Iterator[pa.Table]:
        folds.append(shape.shape_id)
        return joined_shape_rows(table, shape)

    monkeypatch.setattr("flushtracker.shape_log.table.reader.joined_shape_rows", counted)
    note(log, 35)
    assert reader.has_changed()
    assert reader.read_rows("users", before=first) is first
    assert folds == []
    append(log, [item((50, 0), "insert", "50", {"id": "50"}), commit(50)])
    second = reader.read_rows("users", before=first)
    assert (second.rows.num_rows, folds) == (5, ["users"])


def test_cut_is_read_once_for_each_version_of_the_log(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store, each question reads the commits since the last checkpoint."""
    asked, ask = list[str](), DeltaTable.transaction_version

    def counted(table: DeltaTable, app_id: str) -> int | None:
        asked.append(app_id)
        return ask(table, app_id)

    monkeypatch.setattr(DeltaTable, "transaction_version", counted)
    cuts = CutLog(log, RegistryTable(f"{log}_shapes"))
    cuts.note({SOURCE: 35})
    asked.clear()
    cuts.note({SOURCE: 35})
    cuts.note({SOURCE: 36})
    assert asked == []
    reader = ShapeLogReader(log)
    reader.read_cut(["users", "orders"])
    assert len(asked) == len({*asked}) == 2
    asked.clear()
    reader.read_cut(["users", "orders"])
    assert asked == []


def test_an_open_log_tells_the_cut_of_its_own_version(log: str) -> None:
    """Not that of a later one, which it need not have the transactions of."""
    note(log, 35)
    opened = DeltaTable(log)
    note(log, 45)
    registry = RegistryTable(f"{log}_shapes").table_id
    assert opened.transaction_version(CUT_APP_ID.format(registry=registry, source=SOURCE)) == 35
