"""The bound on an event's bytes: no content of a fragment exceeds it, and the limits of capture are within it."""

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flushtracker.capture import event_limit
from flushtracker.capture.event_limit import MAX_BATCH_BYTES, MAX_EVENT_BYTES
from flushtracker.errors import ShapeError
from flushtracker.events.event_size import fragment_bytes_within, max_event_bytes
from flushtracker.events.fragment_sequencer import FragmentSequencer, shape_changes
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.changes import (
    Change,
    Column,
    Commit,
    Delete,
    Insert,
    Relation,
    Row,
    TransactionFragment,
    Update,
    change_bytes,
)
from flushtracker.wal.fragment_converter import DEFAULT_MAX_BATCH_BYTES
from flushtracker.wal.log_offset import LogOffset

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
    """The default leaves some room; the greatest allowed value leaves none."""
    assert DEFAULT_MAX_BATCH_BYTES < MAX_BATCH_BYTES
    assert max_event_bytes(MAX_BATCH_BYTES) <= MAX_EVENT_BYTES < max_event_bytes(MAX_BATCH_BYTES + 1)


def test_a_row_is_measured_with_what_its_event_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture would otherwise publish an event that is a few bytes over the limit, and the topic would reject it."""
    fragment = fragment_of([dict.fromkeys(NAMES, "x")], deletes=False)
    parts = EventRouter(SHAPES).route(fragment)
    sequenced = FragmentSequencer(SOURCE, LSN).sequence(fragment, parts)
    for part, event in zip(parts, sequenced.shape_changes, strict=True):
        monkeypatch.setattr(event_limit, "MAX_EVENT_BYTES", len(event.to_json().encode()) - 1)
        with pytest.raises(ShapeError, match=r"makes an event of \d+ bytes or more, over the limit"):
            event_limit.EventLimit(SOURCE, fragment).check(part)


@pytest.mark.parametrize("limit", [5_000, 1 << 20, 64 << 20])
def test_a_fragment_within_a_limit_is_the_largest(limit: int) -> None:
    """One byte more could exceed it."""
    assert max_event_bytes(fragment_bytes_within(limit)) <= limit < max_event_bytes(fragment_bytes_within(limit) + 1)
