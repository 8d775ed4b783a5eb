"""The bound on an event's bytes: no content of a fragment exceeds it, and the limits of capture are within it."""

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.errors import ShapeError
from flushtracker.events.event_size import fits_within, halves, max_event_bytes, split_list
from flushtracker.events.fragment_sequencer import FragmentSequencer, shape_changes
from flushtracker.events.stream_events import FragmentEvent, FragmentShape
from flushtracker.events.topic_rules import MAX_EVENT_BYTES
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.wal.changes import (
    Change,
    Column,
    Commit,
    Delete,
    Insert,
    LogItem,
    Relation,
    Row,
    TransactionFragment,
    Update,
    change_bytes,
)
from flushtracker.wal.fragment_converter import DEFAULT_MAX_BATCH_BYTES
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import listed_at

LSN = 2**63 - 100
COMMIT = Commit("2026-11-21T01:02:03.456789Z", end_lsn=2**63 - 1)
LONG_NAME = "\x01" * 63
RELATION = Relation(
    7, LONG_NAME, LONG_NAME, "full", tuple(Column(name, 25, is_key=True) for name in ("\x02", '"', LONG_NAME))
)
NAMES = tuple(column.name for column in RELATION.columns)
SHAPES = [
    ShapeDefinition("f" * 200, RELATION.table, replica="full"),
    ShapeDefinition('"' * 200, RELATION.table),
    ShapeDefinition("keyed", RELATION.table, primary_key=("\x02",), replica="full"),
]
SOURCE = "18446744073709551615/4294967295/" + "s" * 63

values = st.none() | st.builds(
    "".join,
    st.lists(st.sampled_from(["\x01", '"', "\\", "/", "x", "é", "漢", "😀", "\x01" * 40, '"' * 40]), max_size=6),
)
rows = st.fixed_dictionaries(dict.fromkeys(NAMES, values))
unchanged = st.sets(st.sampled_from(NAMES), max_size=2)


@st.composite
def updates(draw: st.DrawFn) -> tuple[Row, Row]:
    """An old row, and a new one of which some columns are unchanged TOAST columns."""
    absent = draw(unchanged)
    return draw(rows), {name: value for name, value in draw(rows).items() if name not in absent}


def fragment_of(changes: Iterable[Row | tuple[Row, Row]], *, deletes: bool) -> TransactionFragment:
    """A fragment of inserts, or of deletes, and of updates."""
    made: list[Change] = []
    for index, rows_of in enumerate(changes):
        offset = LogOffset(LSN, 2**62 + 2 * index)
        if isinstance(rows_of, tuple):
            made.append(Update(RELATION, offset, *rows_of))
        else:
            made.append(Delete(RELATION, offset, rows_of) if deletes else Insert(RELATION, offset, rows_of))
    last = made[-1].offset if made else LogOffset(LSN, 0)
    return TransactionFragment(2**32 - 1, LSN, last, has_begin=True, commit=COMMIT, changes=tuple(made))


LONGEST = LogOffset(2**63 - 1, 2**63 - 1)


def event_sizes(fragment: TransactionFragment) -> list[int]:
    """The bytes of each shape's event."""
    parts = EventRouter(SHAPES).route(fragment)
    return [len(shape_changes(SOURCE, part, LONGEST, start=False).to_json().encode()) for part in parts]


@given(changes=st.lists(rows | updates(), max_size=4), deletes=st.booleans())
@example(changes=[(dict.fromkeys(NAMES, "\x01" * 4000), {NAMES[0]: "\x02" * 4000})], deletes=False)
@example(changes=[(dict.fromkeys(NAMES), dict.fromkeys(NAMES, ""))] * 3, deletes=False)
def test_no_event_exceeds_the_bound(changes: list[Row | tuple[Row, Row]], deletes: bool) -> None:  # noqa: FBT001  drawn
    """Whatever the rows contain: characters that JSON escapes, names of any length, keys that repeat whole rows."""
    fragment = fragment_of(changes, deletes=deletes)
    bound = max_event_bytes(sum(map(change_bytes, fragment.changes)))
    assert all(size <= bound for size in event_sizes(fragment))


def test_the_bound_is_close_to_the_worst_case() -> None:
    """A key of control characters that an update repeats: four times six bytes for each byte of the old row."""
    old: Row = {"\x02": "\x01", '"': "\x01" * 10_000, LONG_NAME: ""}
    fragment = fragment_of([(old, {"\x02": "\x03", LONG_NAME: ""})], deletes=False)
    bound = max_event_bytes(sum(map(change_bytes, fragment.changes)))
    assert 0.9 * bound < max(event_sizes(fragment)) <= bound


def test_a_fragment_within_the_default_is_never_over_the_topics_limit() -> None:
    """So its events are not measured."""
    assert max_event_bytes(DEFAULT_MAX_BATCH_BYTES) <= EventLimit(MAX_EVENT_BYTES, 1).max_event_bytes


@pytest.mark.parametrize("max_batch_bytes", [1, 10_000_000])
def test_a_row_is_measured_with_what_its_event_follows(max_batch_bytes: int) -> None:
    """Capture would otherwise publish an event that is a few bytes over the limit, and the topic would reject it."""
    fragment = fragment_of([dict.fromkeys(NAMES, "x" * 300)], deletes=False)
    parts = EventRouter(SHAPES).route(fragment)
    sequenced = FragmentSequencer(SOURCE, LSN, max_event_bytes=MAX_EVENT_BYTES).sequence(fragment, parts)
    for part, event in zip(parts, sequenced.shape_changes, strict=True):
        size = len(event.to_json().encode())
        limit = EventLimit(size + 4096 - 1, max_batch_bytes)
        with pytest.raises(ShapeError, match=r"makes an event of \d+ bytes or more, over the limit"):
            limit.check_of(SOURCE, fragment)(part)
        EventLimit(size + 4096 + 100, max_batch_bytes).check_of(SOURCE, fragment)(part)


def test_a_row_is_measured_with_the_incarnation_and_the_writer_of_its_shape() -> None:
    """Also for a shape that has begun again; otherwise capture would end at such a row, and not the shape."""
    fragment = fragment_of([dict.fromkeys(NAMES, "x" * 300)], deletes=False)
    part = replace(EventRouter(SHAPES).route(fragment)[0], incarnation=2, writer="own")
    size = len(shape_changes(SOURCE, part, LONGEST, start=False).to_json().encode())
    EventLimit(size + 4096, 1).check_of(SOURCE, fragment)(part)
    with pytest.raises(ShapeError, match=f"makes an event of {size} bytes or more, over the limit"):
        EventLimit(size + 4096 - 1, 1).check_of(SOURCE, fragment)(part)


def test_each_row_of_a_fragment_is_measured_by_itself() -> None:
    """Several rows that fit one by one become several events; the third is too large, for the shape that has it."""
    rows: list[Row | tuple[Row, Row]] = [dict.fromkeys(NAMES, "x" * size) for size in (3_000, 3_000, 30_000)]
    fragment = fragment_of(rows, deletes=False)
    (part, *_) = EventRouter(SHAPES).route(fragment)
    check = EventLimit(64_000, max_batch_bytes=1 << 20).check_of(SOURCE, fragment)
    with pytest.raises(ShapeError, match=rf"the insert of .* at {re.escape(str(fragment.changes[2].offset))}, "):
        check(part)
    check(replace(part, items=part.items[:2]))


ids = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=200)
shapes_of_a_commit = st.lists(
    st.builds(
        lambda shape_id, op: FragmentShape(shape_id, None if op is None else LogOffset(LSN, op), int(op is not None)),
        ids,
        st.none() | st.integers(0, 2**57),
    ),
    unique_by=lambda shape: shape.shape_id,
    max_size=60,
)


@given(shapes_of_a_commit, st.integers(6_000, 30_000))
def test_list_parts_have_every_shape_once_and_none_is_over_the_limit(shapes: list[FragmentShape], limit: int) -> None:
    """They are in the order of the list, and a part ends where its last shape is listed."""
    routed = [
        RoutedFragment(
            *(shape.shape_id, 7, LSN, LogOffset(LSN, 2**57), True, COMMIT),
            items=() if shape.last_offset is None else (LogItem(shape.last_offset, "truncate"),),
            change_count=shape.change_count,
        )
        for shape in shapes
    ]
    fragment = TransactionFragment(7, LSN, LogOffset(LSN, 2**57), has_begin=True, commit=COMMIT)
    events = FragmentSequencer(SOURCE, LSN, max_event_bytes=limit).sequence(fragment, routed).fragments
    assert all(len(event.to_json().encode()) <= limit for event in events)
    assert [FragmentEvent.from_json(event.to_json()) for event in events] == list(events)
    assert (len(events) == 1) == fits_within(limit, shapes)
    listed = [shape for event in events for shape in event.shapes]
    assert sorted(listed, key=lambda shape: shape.shape_id) == sorted(shapes, key=lambda shape: shape.shape_id)
    assert [event.commit for event in events] == [None] * (len(events) - 1) + [COMMIT]
    assert [event.start for event in events] == [True] + [False] * (len(events) - 1)
    if len(events) > 1:
        assert [event.last_log_offset.op_offset for event in events] == [
            listed_at(event.shapes[-1].shape_id) for event in events
        ]
        assert [event.follows for event in events[1:]] == [event.last_log_offset for event in events[:-1]]


def test_shapes_that_are_listed_at_one_offset_are_in_one_part() -> None:
    """These two ids have the same CRC; between them no offset would say which of them was listed."""
    twins = ("plumless", "buckeroo")
    assert len({listed_at(shape_id) for shape_id in twins}) == 1
    parts = list(split_list(4_096 + 400, [FragmentShape(shape_id, None, 0) for shape_id in (*twins, "a", "b", "c")]))
    assert len(parts) > 1
    assert any({shape.shape_id for shape in part} >= set(twins) for part in parts)


@given(st.lists(st.booleans(), min_size=1, max_size=12))
@example([True, True, True])
def test_halves_never_separate_an_update_that_splits(updates: list[bool]) -> None:
    """Each change is one item, or two; halved again and again, each event ends with whole changes, and none is lost."""
    items = []
    for index, splits in enumerate(updates):
        items += [LogItem(LogOffset(LSN, 2 * index + part), "insert", "k", {}) for part in range(1 + splits)]
    follows, last = LogOffset.just_before(LSN), LogOffset(LSN, 2 * len(updates) - 2)
    part = RoutedFragment("a", 7, LSN, last, has_begin=True, commit=COMMIT, items=tuple(items))
    whole = shape_changes(SOURCE, part, follows, start=True)
    events = [whole]
    while any(halves(event) for event in events):
        events = [part for event in events for part in halves(event) or (event,)]
    assert [item for event in events for item in event.items] == items
    assert [event.last_log_offset for event in events] == [LogOffset(LSN, 2 * index) for index in range(len(updates))]
    assert [event.follows for event in events] == [follows, *(event.last_log_offset for event in events[:-1])]
    assert [event.start for event in events] == [index == 0 for index in range(len(events))]
    assert [event.commit for event in events] == [None] * (len(events) - 1) + [whole.commit]
    first = halves(whole)
    if first is not None:
        # In the middle, so that the parts of a large event are few.
        assert abs(2 * len({item.offset.op_offset >> 1 for item in first[0].items}) - len(updates)) <= 2
