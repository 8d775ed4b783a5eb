"""The registry table: the last entry of each shape, table and source, read without Kafka."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from flushtracker.delta import compaction, owned_table, registry_table
from flushtracker.delta.data_file import write_file
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import table_rows
from flushtracker.errors import DecodeError, SinkError
from flushtracker.events.registry_events import RegistryEntry, ShapeEntry, SourceEntry, parse_registry_entry
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset

_SOURCE = "7301/1/shapes"
_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def entry(shape_id: str, removed_at: LogOffset | None = None) -> ShapeEntry:
    return ShapeEntry(
        _SOURCE, ShapeDefinition(shape_id, ("public", "t"), snapshot=False), 7, LogOffset(9, 0), removed_at
    )


def test_only_changed_entries_are_appended_and_the_last_one_counts(tmp_path: Path) -> None:
    """In one batch too; the clock may go back between two."""
    table = RegistryTable(str(tmp_path / "shapes"), create=True)
    source = SourceEntry(_SOURCE, LogOffset(5, 0), "7.1")
    assert table.append([entry("a").to_json(), entry("b").to_json(), source.to_json()], _NOW) == 3
    assert table.append([entry("a").to_json()], _NOW) == 0
    removed, other = entry("a", LogOffset(20, 0)), entry("a", LogOffset(30, 0))
    assert table.append([other.to_json(), removed.to_json()], _NOW - timedelta(hours=1)) == 1
    for opened in (table, RegistryTable(str(tmp_path / "shapes"))):
        registry = opened.entries()
        assert registry.shape(_SOURCE, "a") == removed
        assert registry.shape(_SOURCE, "b") == entry("b")
        assert registry.entries[_SOURCE, "source", ""] == source
        assert registry.sources_of("a") == {_SOURCE}
        assert registry.shape(_SOURCE, "c") is None
    assert DeltaTable(str(tmp_path / "shapes")).version() == 2


def test_a_condensed_entry_takes_nothing_from_the_table(tmp_path: Path) -> None:
    """Readers need the definition of an ended shape, and the log of a removed one is deleted some time after that."""
    table = RegistryTable(str(tmp_path / "shapes"), create=True)
    removed = replace(entry("a", LogOffset(20, 0)), ended_because="it cannot go on")
    assert table.append([removed.to_json()], _NOW) == 1
    written = table.written()[_SOURCE, "shape", "a"]
    assert table.append([removed.condensed().to_json()], _NOW + timedelta(hours=1)) == 0
    # A writer that starts over reads again what compaction has left.
    again = [entry("a").to_json(), removed.to_json(), removed.condensed().to_json()]
    assert table.append(again, _NOW + timedelta(hours=2)) == 0
    assert table.written()[_SOURCE, "shape", "a"] == written


def test_a_writer_that_missed_a_removal_learns_of_it_from_the_condensed_entry(tmp_path: Path) -> None:
    """It was down for so long that compaction has deleted the entry before."""
    table = RegistryTable(str(tmp_path / "shapes"), create=True)
    removed = replace(entry("a", LogOffset(20, 0)), ended_because="it cannot go on", evicted_at_ms=5)
    never_known = entry("b", LogOffset(30, 0)).condensed()
    table.append([entry("a").to_json()], _NOW)
    assert table.append([removed.condensed().to_json(), never_known.to_json()], _NOW) == 2
    assert table.entries().shape(_SOURCE, "a") == removed
    assert table.entries().shape(_SOURCE, "b") == never_known
    both = [entry("c").to_json(), entry("c", LogOffset(40, 0)).condensed().to_json()]
    assert table.append(both, _NOW) == 1
    assert table.entries().shape(_SOURCE, "c") == entry("c", LogOffset(40, 0))


def test_the_end_of_a_shape_is_never_taken_back(tmp_path: Path) -> None:
    """A writer without its checkpoint reads old entries again; one that was replaced may append late."""
    table, replaced = (RegistryTable(str(tmp_path / "shapes"), create=True) for _ in range(2))
    live, removed = entry("a"), entry("a", LogOffset(20, 0))
    assert table.append([live.to_json()], _NOW) == 1
    again = replace(live, definition=replace(live.definition, incarnation=2, snapshot=True))
    visible = replace(live, starts_visible=True)
    late = replaced.written()
    assert table.append([removed.to_json()], _NOW) == 1
    assert table.append([live.to_json(), visible.to_json()], _NOW) == 0
    assert table.append([removed.to_json(), visible.to_json()], _NOW) == 0

    replaced.written = lambda: late  # type: ignore[method-assign]
    assert replaced.append([visible.to_json()], _NOW) == 1
    assert RegistryTable(str(tmp_path / "shapes")).entries().shape(_SOURCE, "a") == removed
    assert table.append([again.to_json(), removed.to_json()], _NOW) == 1
    assert table.entries().shape(_SOURCE, "a") == again


@pytest.mark.parametrize("ahead", [timedelta(hours=1), -timedelta(hours=1)])
def test_entry_of_a_replaced_writer_never_replaces_a_later_one(tmp_path: Path, ahead: timedelta) -> None:
    """Two programs on two hosts, whose clocks are apart: the first is late with the entry before the last."""
    uri = str(tmp_path / "shapes")
    stale = RegistryTable(uri, create=True)
    stale.fence_others()
    entries = [SourceEntry(_SOURCE, LogOffset(number, 0), "7.1") for number in range(3)]
    assert stale.append([entries[0].to_json()], _NOW + ahead) == 1
    current = RegistryTable(uri)
    current.fence_others()
    assert current.append([entries[2].to_json()], _NOW) == 1
    with pytest.raises(SinkError, match=r"this writer has been fenced: another writer \(process \d+ on .* writes"):
        stale.append([entries[1].to_json()], _NOW + ahead)
    for table in (current, RegistryTable(uri)):
        assert table.entries().entries[_SOURCE, "source", ""] == entries[2]


def test_entry_that_was_compared_before_another_writer_started_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta would put its commit after those that it has not read."""
    uri = str(tmp_path / "shapes")
    stale, current = RegistryTable(uri, create=True), RegistryTable(uri)
    stale.fence_others()
    entries = [SourceEntry(_SOURCE, LogOffset(number, 0), "7.1") for number in range(3)]

    def replace_it(*arguments: Any) -> AddAction:
        monkeypatch.undo()
        current.fence_others()
        current.append([entries[2].to_json()], _NOW)
        return write_file(*arguments)

    monkeypatch.setattr(owned_table, "write_file", replace_it)
    with pytest.raises(SinkError, match="this writer has been fenced: another writer"):
        stale.append([entries[1].to_json()], _NOW + timedelta(hours=1))
    assert RegistryTable(uri).entries().entries[_SOURCE, "source", ""] == entries[2]


def test_a_condensed_entry_ends_the_incarnation_that_it_names(tmp_path: Path) -> None:
    """The entries of that incarnation were compacted before they were read; one of them may be appended late."""
    table = RegistryTable(str(tmp_path / "shapes"), create=True)
    second = replace(entry("a"), definition=replace(entry("a").definition, incarnation=2, snapshot=True))
    for known in (entry("a"), entry("a", LogOffset(20, 0))):
        table.append([replace(known, source=f"{known.removed_at}").to_json()], _NOW)
        ended = replace(second, source=f"{known.removed_at}", removed_at=LogOffset(40, 0))
        assert table.append([ended.condensed().to_json()], _NOW) == 1
        assert table.append([replace(ended, removed_at=None).to_json()], _NOW) == 0
        found = table.entries().shape(ended.source, "a")
        assert found is not None
        assert (found.definition.incarnation, found.removed_at) == (2, LogOffset(40, 0))


def test_unreadable_entry_is_not_appended(tmp_path: Path) -> None:
    """Nor the others of its batch: the caller decides what to do."""
    table = RegistryTable(str(tmp_path / "shapes"), create=True)
    with pytest.raises(DecodeError, match="registry entry is not JSON"):
        table.append([entry("a").to_json(), "{"], _NOW)
    assert table.entries().entries == {}


def test_registry_table_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are merged every so many versions."""
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 10)
    table = RegistryTable(str(tmp_path / "shapes"), create=True)
    for number in range(35):
        assert table.append([entry(f"s{number}").to_json()], _NOW) == 1
    assert len(table.entries().entries) == 35
    assert len(DeltaTable(str(tmp_path / "shapes")).file_uris()) < 12


def _seen(us: int = 0) -> Callable[[], int]:
    return lambda: us


def _changed(table: RegistryTable, times: int) -> None:
    """The entry of the source changes so often, as with each capture that claims it."""
    for number in range(times):
        table.append([SourceEntry(_SOURCE, LogOffset(number, 0), "7.1").to_json()], _NOW + timedelta(seconds=number))


def test_the_table_has_no_more_rows_than_entries_after_all_have_changed_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes come and go, and so do their tables' columns: what replaced rows had, nobody needs."""
    monkeypatch.setattr(registry_table, "LEAST_FOLDED", 20)
    uri = str(tmp_path / "shapes")
    table = RegistryTable(uri, create=True)
    early = RegistryTable(uri)
    table.append([entry("a").to_json(), entry("b").to_json(), entry("c").to_json()], _NOW)
    table.append([entry("b", LogOffset(20, 0)).to_json()], _NOW)
    _changed(table, 10)
    assert table.fold(_seen(), 0) == 0
    _changed(table, 20)
    before, version = table.written(), DeltaTable(uri).version()
    assert early.written() == before
    assert table.fold(_seen(), 0) == 30
    for reader in (table, early, RegistryTable(uri)):
        assert reader.written() == before
        assert len(table_rows(DeltaTable(uri), ["id"])) == len(before) == 4
    assert len(table_rows(DeltaTable(uri, version=version), ["id"])) == 34, "a reader of the version before has all"
    assert table.fold(_seen(), 0) == 0


def test_of_a_shape_whose_log_is_deleted_the_end_is_kept_and_not_the_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not come back, so its id is kept; one that was removed later has its log, and its definition."""
    monkeypatch.setattr(registry_table, "LEAST_FOLDED", 0)
    table = RegistryTable(str(tmp_path / "shapes"), create=True)
    removed = [replace(entry(name, LogOffset(20, 0)), ended_because="it cannot go on") for name in "abc"]
    for number, each in enumerate(removed):
        table.append([each.to_json()], _NOW + timedelta(seconds=number))
    written = table.written()
    assert table.fold(_seen(), written[_SOURCE, "shape", "b"].written_us) == 2
    registry = RegistryTable(str(tmp_path / "shapes")).entries()
    assert [registry.shape(_SOURCE, name) for name in "abc"] == [
        *(each.condensed() for each in removed[:2]),
        removed[2],
    ]
    assert {key: each.written_at for key, each in table.written().items()} == {
        key: each.written_at for key, each in written.items()
    }
    assert table.append([entry("a").to_json(), removed[0].condensed().to_json()], _NOW) == 0


def test_entries_that_are_appended_while_the_table_is_folded_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the job's driver, whose upkeep folds in another thread: also one that the writer had prepared before."""
    monkeypatch.setattr(registry_table, "LEAST_FOLDED", 20)
    uri = str(tmp_path / "shapes")
    writer, upkeep = RegistryTable(uri, create=True), RegistryTable(uri)
    writer.fence_others()
    _changed(writer, 30)

    def append_first(*arguments: Any) -> AddAction:
        monkeypatch.setattr(owned_table, "write_file", fold_first)
        writer.append([entry("a").to_json()], _NOW + timedelta(hours=1))
        return write_file(*arguments)

    def fold_first(*arguments: Any) -> AddAction:
        monkeypatch.setattr(owned_table, "write_file", write_file)
        assert RegistryTable(uri).fold(_seen(), 0) == 29
        return write_file(*arguments)

    monkeypatch.setattr(owned_table, "write_file", append_first)
    assert upkeep.fold(_seen(), 0) == 0, "another one was first"
    found = RegistryTable(uri).entries()
    assert found.shape(_SOURCE, "a") == entry("a")
    assert found.entries[_SOURCE, "source", ""] == SourceEntry(_SOURCE, LogOffset(29, 0), "7.1")
    assert len(table_rows(DeltaTable(uri), ["id"])) == 2


def test_an_older_copy_is_told_from_the_table_also_after_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a row that the log has seen: folded rows were there, and a copy that lacks them is never folded."""
    monkeypatch.setattr(registry_table, "LEAST_FOLDED", 20)
    uri, copy = str(tmp_path / "shapes"), str(tmp_path / "copy")
    table = RegistryTable(uri, create=True)
    _changed(table, 5)
    table.entries()
    early_us = table.last_us
    shutil.copytree(uri, copy)
    table.append([entry("a").to_json()], _NOW + timedelta(minutes=1))
    table.entries()
    seen_us = table.last_us
    table.append([entry("a", LogOffset(20, 0)).to_json()], _NOW + timedelta(minutes=2))
    table.entries()
    replaced_us = table.last_us
    _changed(table, 30)
    copied = RegistryTable(copy)
    _changed(copied, 40)
    assert copied.fold(_seen(seen_us), 0) == 0
    copied.entries()
    assert not copied.has_row_of(seen_us)
    assert table.fold(_seen(seen_us), 0) > 0
    for reader in (table, RegistryTable(uri)):
        reader.entries()
        assert [reader.has_row_of(us) for us in (early_us, seen_us, replaced_us, reader.last_us)] == [True] * 4
        assert not reader.has_row_of(reader.last_us + 1)
    times = table_rows(DeltaTable(uri), ["written_at"])["written_at"].cast(pa.int64()).to_pylist()
    assert not {early_us, seen_us} & {*times}, "these rows are gone, and were there all the same"


def test_an_entry_is_later_than_a_row_that_a_fold_has_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced writer, whose clock is ahead, appends what does not count; otherwise an older copy might seem to have
    the next row."""
    monkeypatch.setattr(registry_table, "LEAST_FOLDED", 0)
    uri = str(tmp_path / "shapes")
    table, replaced = RegistryTable(uri, create=True), RegistryTable(uri)
    live, removed = entry("a"), entry("a", LogOffset(20, 0))
    table.append([live.to_json()], _NOW)
    late = replaced.written()
    table.append([removed.to_json()], _NOW)
    replaced.written = lambda: late  # type: ignore[method-assign]
    replaced.append([replace(live, starts_visible=True).to_json()], _NOW + timedelta(hours=1))
    table.entries()
    ahead_us = table.last_us
    assert table.fold(_seen(), 0) == 2
    for expected, appender in enumerate((table, RegistryTable(uri)), start=1):
        appender.append([entry(f"next{expected}").to_json()], _NOW)
        appender.entries()
        assert appender.last_us == ahead_us + expected


def test_a_change_costs_readers_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all shapes that there ever were; also where files were merged, or the table was folded."""
    monkeypatch.setattr(registry_table, "LEAST_FOLDED", 1)
    uri = str(tmp_path / "shapes")
    writer, reader = RegistryTable(uri, create=True), RegistryTable(uri)
    writer.append([entry(f"s{number}").to_json() for number in range(100)], _NOW)
    reader.entries()
    parsed, queried = list[str](), list[str]()

    def parse(text: str) -> RegistryEntry:
        parsed.append(text)
        return parse_registry_entry(text)

    def query(opened: DeltaTable, selected: Iterable[str]) -> pa.Table:
        queried.append(opened.table_uri)
        return table_rows(opened, selected)

    monkeypatch.setattr(registry_table, "parse_registry_entry", parse)
    monkeypatch.setattr(registry_table, "table_rows", query)
    removed = entry("s7", LogOffset(20, 0))
    writer.append([removed.to_json()], _NOW)
    del parsed[:], queried[:]
    assert reader.entries().shape(_SOURCE, "s7") == removed
    assert (parsed, queried) == ([removed.to_json()], [])
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 1)
    writer.append([entry("more").to_json()], _NOW)
    del parsed[:]
    assert len(reader.entries().entries) == 101
    # One row that does not count any more is in the merged file.
    assert sorted(parsed) == sorted([entry("s7").to_json(), entry("more").to_json()])


def test_all_who_have_a_table_open_share_what_they_read(tmp_path: Path) -> None:
    """Each thread of serve that reads had a copy, of 150 MB for 60,000 rows; a table in its place has none of it."""
    uri = str(tmp_path / "shapes")
    table = RegistryTable(uri, create=True)
    others = [RegistryTable(uri) for _ in range(3)]
    for number in range(3):
        table.append([entry(f"a{number}").to_json()], _NOW)
        read = others[0].entries()
        assert {id(each.entries()) for each in (table, *others)} == {id(read)}
        assert {id(each.written()) for each in others} == {id(others[0].written())}
        assert len({each.last_us for each in (table, *others)}) == 1
    table.append([entry("b").to_json()], _NOW)
    newest = table.entries()
    assert others[0].entries() is newest is not read
    del table, others, newest, read
    shutil.rmtree(uri)
    assert not RegistryTable(uri, create=True).entries().entries
