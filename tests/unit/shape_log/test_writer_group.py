"""A shape's writer without its storage: each change once, in whole transactions, whatever is resent, recut or lost."""

import random
from dataclasses import replace

import pytest

from flushtracker.errors import StateError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.log_row import LogRow
from flushtracker.shape_log.shape_writer import LogEnd
from flushtracker.shape_log.transaction_builder import WriteUnit
from flushtracker.shape_log.write_loop import FlushLimits
from flushtracker.shape_log.writer_group import WriterGroup, WriterSettings
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.plain_writer import CheckedGroup, PlainBatch
from tests.support.shape_transactions import SOURCE, Transactions


def _heads(rows: list[LogRow]) -> list[tuple[int, int, str]]:
    return [row[:3] for row in rows]


def test_state_of_another_version_is_refused_by_name() -> None:
    """And none at all is: its first bytes would be read as a number of shapes."""
    packed = WriterGroup(SOURCE, WriterSettings()).pack()
    for version in (b"\x00", b"\x02", b"\x03", b"{", b""):
        message = rf"state has version {version.hex() or 'none'}, this job reads version 01; use the release that wrote"
        with pytest.raises(StateError, match=message):
            WriterGroup(SOURCE, WriterSettings(), version + packed[1:] if version else b"")


def test_removed_shape_keeps_nothing_of_its_open_transaction() -> None:
    """With ``txn`` the state has an open transaction's items, and no later event would end it."""
    stream = Transactions(rng=random.Random(3))  # noqa: S311  a transaction in several fragments
    stream.grow(1)
    *first, _ = stream.events(list(stream.items))
    group = CheckedGroup(SOURCE, WriterSettings("txn"))
    group.handle_events(first, [], 0)
    assert str(first[0].items[0].key).encode() in group.pack().replace(b"\\", b"")
    group.handle_events([], [_entry(removed_at=LogOffset(5000, 0))], 10)
    assert len(group.pack()) < 150


def _entry(flush: FlushPolicy | None = None, removed_at: LogOffset | None = None) -> ShapeEntry:
    definition = ShapeDefinition("a", ("public", "t"), flush=flush or FlushPolicy())
    return ShapeEntry(SOURCE, definition, 1, LogOffset(900, 0), removed_at)


def test_shape_flushes_by_its_own_limits() -> None:
    """By bytes, by time, and at the end of a chunk, which need not end a transaction."""
    items = tuple(LogItem(LogOffset(1000, op), "insert", "k" * 10, {}) for op in range(0, 20, 2))
    event = ShapeChangesEvent(
        *(SOURCE, "a", 7, LogOffset(900, 0), LogOffset(1000, 18)), start=True, has_begin=True, commit=None, items=items
    )
    commit = replace(
        event,
        items=(),
        last_log_offset=LogOffset(1000, 20),
        commit=Commit("2026-01-02T03:04:05Z", 1),
        follows=LogOffset(1000, 18),
    )
    group = CheckedGroup(SOURCE, WriterSettings(hold=True))
    (chunks,) = group.handle_events([event], [_entry(FlushPolicy(bytes=1000, interval_ms=100, chunk_bytes=36))], 0)
    # 12 bytes each, so three fill a chunk; the last is held.
    assert [row.chunk for row in chunks.rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert chunks.notified == LogOffset(1000, 15)
    assert group.handle_events([], [], 99) == []
    (by_time,) = group.handle_events([], [], 100)
    assert [row[:2] for row in by_time.rows] == [(1000, 18)]
    assert by_time.notified == LogOffset(1000, 17)
    assert group.handle_events([commit], [], 100) == [PlainBatch("a")]
    (ended,) = group.handle_events([], [], 200)
    assert ended.notified == LogOffset.last_of(1000)


def test_chunk_that_the_log_has_and_the_state_has_not_begins_empty() -> None:
    """The state knows how full the chunk before was; three items of 12 bytes fill one."""
    items = [LogItem(LogOffset(1000, op), "insert", "k" * 10, {}) for op in range(0, 12, 2)]
    first = ShapeChangesEvent(
        *(SOURCE, "a", 7, LogOffset(900, 0), LogOffset(1000, 2)),
        start=True,
        has_begin=True,
        commit=None,
        items=(*items[:2],),
    )
    rest = replace(first, items=(*items[2:],), last_log_offset=LogOffset(1000, 10), follows=LogOffset(1000, 2))
    group = CheckedGroup(SOURCE, WriterSettings())
    group.handle_events([first], [_entry(FlushPolicy(chunk_bytes=36))], 0)
    ends = {(SOURCE, "a"): LogEnd(LogOffset(1000, 4), LogOffset.before_all(), 5)}
    again = CheckedGroup(SOURCE, WriterSettings(ends=ends), group.pack())
    (batch,) = again.handle_events([rest], [], 10)
    assert [(row.op_offset, row.chunk) for row in batch.rows] == [(6, 5), (8, 5), (10, 5)]


def test_open_transaction_that_txn_kept_back_is_written_if_the_unit_becomes_txn_fragment() -> None:
    """Its items are in the state, and the events that brought them do not come again."""
    stream = Transactions(rng=random.Random(3))  # noqa: S311  a transaction in several fragments
    stream.grow(1)
    *first, last = stream.events(list(stream.items))
    assert first[0].items
    group = CheckedGroup(SOURCE, WriterSettings("txn"))
    assert group.handle_events(first, [], 0) == [PlainBatch("a")]
    again = CheckedGroup(SOURCE, WriterSettings("txn_fragment"), group.pack())
    (batch,) = again.handle_events([last], [], 0)
    assert _heads(batch.rows) == stream.expected_rows()


def test_lost_commit_is_a_gap_though_the_log_ends_with_the_last_item() -> None:
    """A chunk ends there, the checkpoint is lost, and so is the event of the commit: readers would wait for its row."""
    stream = Transactions()
    stream.grow(2)
    first, second = stream.items
    events = [event for event in stream.events([first, second]) if event.last_log_offset.tx_offset == second]
    last = stream.items[first][-1].offset
    ends = {(SOURCE, "a"): LogEnd(last, LogOffset.before_all(), 0)}
    group = CheckedGroup(SOURCE, WriterSettings(ends=ends))
    (batch,) = group.handle_events([replace(events[0], follows=last)], [], 0)
    assert (batch.rows, batch.gap is None) == ([], False)
    stream.restart()
    (healed,) = group.handle_events(stream.events([first, second]), [], 0)
    assert _heads(healed.rows) == [row for row in stream.expected_rows() if row[:2] > last]


def _entry_of(writer: str, incarnation: int = 1) -> ShapeEntry:
    definition = ShapeDefinition("a", ("public", "t"), incarnation=incarnation, writer=writer)
    return ShapeEntry(SOURCE, definition, 16_400, LogOffset(900, 0))


def test_shape_of_another_writer_is_neither_stored_nor_notified_nor_kept_nor_a_gap() -> None:
    """Its writer says how far it is durable; that this log has it, too, would say nothing of that."""
    stream = Transactions()
    stream.grow(3)
    group = WriterGroup(SOURCE, WriterSettings())
    events = [replace(event, writer="own") for event in stream.events([*stream.items])]
    changes = [ChangeColumns.of(event) for event in events[1:]]  # For a shape of the log, the start would be missing.
    assert group.handle_batch(changes, [_entry_of("own")], 0) == []
    assert group.durable() == {}
    assert group.pack() == WriterGroup(SOURCE, WriterSettings()).pack()


@pytest.mark.parametrize("write_unit", ["txn", "txn_fragment"])
def test_shape_that_another_writer_takes_over_ends_here_and_may_come_back(write_unit: WriteUnit) -> None:
    """What is held is dropped, late changes of before are not taken; a later incarnation of the log counts."""
    stream = Transactions()
    stream.grow(4)
    settings = WriterSettings(write_unit)
    group = WriterGroup(SOURCE, settings)
    first, *rest = stream.items
    group.handle_batch(map(ChangeColumns.of, stream.events([first], until=1)), [_entry_of("log")], 0)
    (taken_over,) = group.handle_batch([], [_entry_of("own", 2)], 0)
    assert (taken_over.begun, len(taken_over.rows), taken_over.notified) == (2, 0, None)
    assert group.durable()["a"].is_removed
    late = [ChangeColumns.of(event) for event in stream.events(rest)]
    assert all(batch.notified is None and not len(batch.rows) for batch in group.handle_batch(late, [], 0))
    group = WriterGroup(SOURCE, settings, group.pack())
    stream.incarnation = 3
    stream.restart()
    stream.grow(1)
    events = [ChangeColumns.of(event) for event in stream.events([max(stream.items)])]
    (back,) = group.handle_batch(events, [_entry_of("log", 3)], 0)
    assert (back.begun, back.gap) == (3, None)
    assert len(back.rows)


_COUNT = 20_000


def _one_row(shape_id: str, lsn: int, *, start: bool = True, incarnation: int = 1) -> ShapeChangesEvent:
    item = LogItem(LogOffset(lsn, 0), "insert", "k", {})
    commit = Commit("2026-01-02T03:04:05Z", 1)
    offsets = LogOffset(lsn - 50, 0), LogOffset(lsn, 0)
    return ShapeChangesEvent(
        SOURCE,
        shape_id,
        7,
        *offsets,
        start=start,
        has_begin=True,
        commit=commit,
        items=(item,),
        incarnation=incarnation,
    )


def _entry_at(shape_id: str, start: int, end: int | None = None, incarnation: int = 1) -> ShapeEntry:
    definition = ShapeDefinition(shape_id, ("public", "t"), incarnation=incarnation)
    removed_at = None if end is None else LogOffset(end, 0)
    return ShapeEntry(SOURCE, definition, 1, LogOffset(start, 0), removed_at)


@pytest.mark.parametrize("hold", [False, True])
def test_nothing_is_left_of_shapes_that_have_come_and_gone(hold: bool) -> None:  # noqa: FBT001  a parameter of the test
    """A thousand at a time; what each batch has to read and write does not grow with those before."""
    settings = WriterSettings(hold=hold)
    packed, sizes, lsn = WriterGroup(SOURCE, settings).pack(), list[int](), 1000
    for first in range(0, _COUNT, 1000):
        shape_ids = [f"shape {number}" for number in range(first, first + 1000)]
        for changes, end, taken_lsn in ((True, None, -1), (False, lsn + 10, -1), (False, None, lsn + 20)):
            group = WriterGroup(SOURCE, settings, packed)
            entries = [] if taken_lsn > 0 else [_entry_at(shape_id, lsn - 100, end) for shape_id in shape_ids]
            events = [ChangeColumns.of(_one_row(shape_id, lsn)) for shape_id in shape_ids] if changes else []
            group.handle_batch(events, entries, 0, taken_lsn)
            assert len(group.ended) == (1000 if end else 0)
            packed = group.pack()
            sizes.append(len(packed))
        lsn += 100
    assert max(sizes) < 3 * sizes[0]
    assert len(packed) < 200
    assert WriterGroup(SOURCE, settings, packed).durable() == {}


def test_late_events_of_a_forgotten_shape_change_nothing() -> None:
    """A duplicate, a change that a frozen capture still sends, and an entry that is read again."""
    group = CheckedGroup(SOURCE, WriterSettings())
    group.handle_events([_one_row("a", 1000)], [_entry_at("a", 900)], 0)
    group.handle_events([], [_entry_at("a", 900, 1010)], 0)
    assert group.handle_events([], [], 0, taken_lsn=1009) == []
    assert group.durable()["a"].is_removed
    group.handle_events([], [], 0, taken_lsn=1010)
    packed = group.pack()
    for again in (group, CheckedGroup(SOURCE, WriterSettings(), packed)):
        late = [_one_row("a", 1000), _one_row("a", 1000, start=False)]
        assert again.handle_events(late, [_entry_at("a", 900), _entry_at("a", 900, 1010)], 0) == []
        assert again.pack() == packed


def test_other_shapes_are_what_they_were_when_one_is_forgotten() -> None:
    """One that is live, one that was removed later, and one that is added at that place."""
    group = CheckedGroup(SOURCE, WriterSettings())
    names = ("live", "gone", "later")
    group.handle_events([_one_row(name, 1000) for name in names], [_entry_at(name, 900) for name in names], 0)
    group.handle_events([], [_entry_at("gone", 900, 1010), _entry_at("later", 900, 1500)], 0)
    again = CheckedGroup(SOURCE, WriterSettings(), group.pack())
    again.handle_events([], [], 0, taken_lsn=1020)
    assert {name: known.is_removed for name, known in again.durable().items()} == {"live": False, "later": True}
    events = [replace(_one_row("live", 1050), start=False), _one_row("new", 1060), _one_row("later", 1060)]
    live, new = again.handle_events(events, [_entry_at("new", 1020)], 0)
    assert [(each.shape_id, each.gap, each.notified) for each in (live, new)] == [
        ("live", None, LogOffset.last_of(1050)),
        ("new", None, LogOffset.last_of(1060)),
    ]


def test_forgotten_shape_begins_again_with_chunks_of_its_own() -> None:
    """Chunks rise within a shape's log, and of those before nothing is known; its next incarnation is marked."""
    group = CheckedGroup(SOURCE, WriterSettings())
    policy = FlushPolicy(chunk_bytes=1)
    entry = replace(_entry_at("a", 900), definition=ShapeDefinition("a", ("public", "t"), flush=policy))
    (first,) = group.handle_events([_one_row("a", 1000)], [entry], 0)
    group.handle_events([], [_entry_at("a", 900, 1010)], 0)
    group.handle_events([], [], 0, taken_lsn=1010)
    (again,) = group.handle_events([_one_row("a", 1100, incarnation=2)], [_entry_at("a", 1010, incarnation=2)], 0)
    assert again.begun == 2
    assert max(row.chunk for row in first.rows) < min(row.chunk for row in again.rows)


def test_shape_that_another_writer_has_taken_over_is_forgotten_too() -> None:
    """No transaction of the log's incarnation is above the start of the next one, which another writer has."""
    group = WriterGroup(SOURCE, WriterSettings())
    group.handle_batch([ChangeColumns.of(_one_row("a", 1000))], [_entry_at("a", 900)], 0)
    group.handle_batch([], [replace(_entry_of("own", 2), starts_after=LogOffset(1010, 0))], 0)
    assert group.ended == ["a"]
    group.handle_batch([], [], 0, taken_lsn=1009)
    assert group.durable()["a"].is_removed
    group.handle_batch([], [], 0, taken_lsn=1010)
    assert group.durable() == {}


def test_limits_that_a_shape_does_not_set_have_defaults() -> None:
    """64 KiB, a second, 10 MiB."""
    assert FlushLimits.of(FlushPolicy()) == FlushLimits(65_536, 1_000, 10_485_760)
    assert FlushLimits.of(FlushPolicy(1, 2, 3)) == FlushLimits(1, 2, 3)
