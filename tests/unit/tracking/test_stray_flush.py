"""Flushes that another than the shape's writer notifies: what the job says of them, and that nothing else is left."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from pyspark.sql.streaming.state import GroupState

from flushtracker.tracking.job.group_state import (
    DEAD_LETTER,
    REFUSED,
    REPORT,
    GroupSettings,
    OutputRow,
    handle_group,
)
from flushtracker.tracking.shape_events import (
    FLUSHED,
    REMOVED,
    SENT_WITH_COMMIT,
    ShapeEvent,
    ShapeEvents,
    label_of,
    shape_and_writer,
)
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.stray_flush import StrayFlush
from flushtracker.wal.log_offset import LogOffset
from tests.support.group_view import shapes_of
from tests.support.random_wal import RANDOMS

SOURCE = "7301/1/shapes"
WRITERS = ("log", "own", "other")


def sent(shape_id: str, lsn: int, writer: str = "log") -> ShapeEvent:
    return ShapeEvent(label_of(shape_id, writer), SENT_WITH_COMMIT, lsn, 0, 0)


def flushed(shape_id: str, lsn: int, writer: str = "log") -> ShapeEvent:
    return ShapeEvent(label_of(shape_id, writer), FLUSHED, lsn, 0)


def removed(shape_id: str, lsn: int, writer: str = "log") -> ShapeEvent:
    return ShapeEvent(label_of(shape_id, writer), REMOVED, lsn, 0)


def apply(group: ShapeGroup, *events: ShapeEvent) -> tuple[StrayFlush, ...]:
    return group.apply(ShapeEvents.of(events), now_ms=0, max_pending=4096)


@pytest.fixture
def group() -> ShapeGroup:
    return ShapeGroup(LogOffset(1000, 0))


def test_the_flush_of_another_names_both_writers_and_its_greatest_offset(group: ShapeGroup) -> None:
    """In the batch of the transaction or in a later one; one for each other writer."""
    stray = [StrayFlush("users", "own", "log", LogOffset(9000, 0))]
    assert (
        list(apply(group, flushed("users", 9000, "own"), sent("users", 2000), flushed("users", 2000, "own"))) == stray
    )
    assert list(apply(group, flushed("users", 9000, "own"))) == stray
    both = apply(group, flushed("users", 3000, "own"), flushed("users", 4000, "other"), flushed("users", 1500))
    assert [(each.notified_by, each.offset.tx_offset) for each in both] == [("other", 4000), ("own", 3000)]
    assert group.report().holders[0].last_flushed == LogOffset(1999, 0)


def test_nothing_is_said_of_what_is_not_past_the_writer_or_of_a_shape_that_is_caught_up(group: ShapeGroup) -> None:
    """Nobody knows the writer of a caught-up shape, and an offset that is flushed anyway does no harm."""
    assert apply(group, flushed("users", 9000, "own")) == ()
    assert apply(group, sent("users", 2000), sent("users", 3000), flushed("users", 2000)) == ()
    assert apply(group, flushed("users", 2999, "own")) == ()
    assert group.report().holders[0].last_flushed == LogOffset(2999, 0)
    assert apply(group, flushed("users", 2000, "own")) == ()
    assert len(apply(group, flushed("users", 3000, "own"))) == 1
    assert apply(group, flushed("users", 3000), flushed("users", 3000, "own")) == ()
    assert apply(group, flushed("users", 9000, "own"), flushed("nobody", 9000, "own")) == ()


def test_a_writer_that_had_the_shape_before_may_repeat_its_flushes(group: ShapeGroup) -> None:
    """It does so when it starts. Only what it says of transactions that are not its own is stray."""
    apply(group, sent("users", 2000), removed("users", 2500), sent("users", 3000, "own"))
    assert apply(group, flushed("users", 2000)) == ()
    assert apply(group, flushed("users", 2500)) == ()
    assert [each.notified_by for each in apply(group, flushed("users", 3000))] == ["log"]
    assert apply(group, flushed("users", 3000, "own"), flushed("users", 3000)) == ()


def test_each_of_two_writers_may_flush_its_own_while_both_are_pending(group: ShapeGroup) -> None:
    """A shape that changes hands has both until the removal."""
    apply(group, sent("users", 2000), sent("users", 3000, "own"))
    assert apply(group, flushed("users", 2000), flushed("users", 3000, "own")) == ()
    assert group.report().pending_shapes == 0


def test_the_dead_letter_is_true_of_the_next_writers_flush_although_that_counts_later(group: ShapeGroup) -> None:
    """A shape changes hands, and the next writer's flush is read before the transaction that it is about."""
    handed_over = sent("users", 2000), flushed("users", 3000, "own")
    (reason,) = [str(row.reason) for row in output([ShapeEvents.of(handed_over)]) if row.kind == DEAD_LETTER]
    assert "this moves nothing of what 'log' was sent. Unless the shape is changing hands" in reason
    apply(group, *handed_over)
    apply(group, sent("users", 3000, "own"))
    assert [(each.writer, each.last_flushed.tx_offset) for each in group.report().holders] == [("log", 1999)]
    apply(group, removed("users", 2500))
    assert group.report().pending_shapes == 0


def plainly(pending: set[str], events: Sequence[ShapeEvent], after: ShapeGroup) -> list[StrayFlush]:
    """By definition: of each label that has been sent nothing, against each other writer that still has to flush."""
    known = pending | {event.label for event in events if event.kind == SENT_WITH_COMMIT}
    ordered = sorted(event for event in events if event.kind == FLUSHED and event.label not in known)
    greatest = {
        label: max(LogOffset(each.tx, each.op) for each in of) for label, of in groupby(ordered, lambda e: e[0])
    }
    return sorted(
        StrayFlush(shape_id, notified_by, holder.writer, offset)
        for (shape_id, notified_by), offset in ((shape_and_writer(label), at) for label, at in greatest.items())
        for holder in after.report().holders
        if holder.shape_id == shape_id and holder.writer != notified_by and offset > holder.last_flushed
    )


@given(RANDOMS)
def test_stray_flushes_are_those_of_the_definition_in_any_order_of_the_events(rng: Random) -> None:
    """Few shapes, so that all that are pending are in the report; each batch also backwards, on the stored state."""
    group, lsn = ShapeGroup(LogOffset(0, 0)), 1000
    for _ in range(5):
        events = []
        for _ in range(rng.randint(1, 6)):
            shape_id, writer, lsn = rng.choice("ab"), rng.choice(WRITERS), lsn + 100
            other = rng.choice(WRITERS)
            events += rng.choices(
                [
                    sent(shape_id, lsn, writer),
                    flushed(shape_id, rng.randrange(1000, lsn + 300), other),
                    removed(shape_id, lsn - 50, other),
                ],
                [3, 5, 1],
                k=rng.randint(1, 3),
            )
        pending = {label for label, view in shapes_of(group).items() if view.txns}
        stored = ShapeGroup.unpack(group.pack())
        found = apply(group, *events)
        assert list(found) == plainly(pending, events, group)
        assert apply(stored, *rng.sample(events, len(events))) == found
        assert stored.report() == group.report()


def output(parts: Sequence[ShapeEvents]) -> list[OutputRow]:
    """The rows of one group's first micro-batch, which Spark gives in these parts."""

    class State:
        exists = False

        def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802  pyspark's name
            return 0

        def update(self, _: object) -> None: ...

    class Frame:
        def __init__(self, part: ShapeEvents) -> None:
            self.part = part

        def __getitem__(self, _: str) -> Any:
            return self

        def tolist(self) -> list[bytes]:
            return [self.part.pack()]

    frames = cast("Any", map(Frame, parts))
    rows: Iterator[list[OutputRow]] = handle_group(
        (SOURCE, "0"), frames, cast("GroupState", State()), GroupSettings(1, 9)
    )
    return [row for each in rows for row in each]


@pytest.mark.parametrize("shapes", [0, 1, 10, 11, 500])
def test_of_each_group_and_batch_the_first_ten_are_dead_letters_and_say_how_many_there_are(shapes: int) -> None:
    """The number of rows is the number that the driver stores and counts; the same rows for any order of the events."""
    rng = Random(shapes)  # noqa: S311  reproducible
    names = [f"s{number:03}" for number in range(shapes)]
    events = [event for name in names for event in (sent(name, 2000), flushed(name, 2500 + len(name), "own"))]
    orders = [ShapeEvents.of(rng.sample(events, len(events))) for _ in range(3)]
    outputs = [output([order]) for order in orders]
    assert outputs[1:] == outputs[:-1]
    rows = outputs[0]
    letters = [row for row in rows if row.kind == DEAD_LETTER]
    assert len(letters) == min(shapes, 10)
    assert [row.events for row in rows if row.kind == REFUSED] == ([len(letters)] if letters else [])
    assert [row.kind for row in rows].count(REPORT) == bool(shapes)
    for name, letter in zip(names, letters, strict=False):
        assert (letter.place, f"shape {name!r} is written by 'log', but 'own' has notified" in str(letter.reason)) == (
            f"source {SOURCE}",
            True,
        )
        assert f'"shape_id":"{name}"' in str(letter.value)
        assert '"writer":"own"' in str(letter.value)
    told = [f"(the first 10 of {shapes} such shapes)" in str(letter.reason) for letter in letters]
    assert told == ([shapes > 10, *([False] * 9)] if shapes >= 10 else [False] * shapes)


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_stray_writer_leaves_no_state_once_the_cursor_has_passed_what_it_notified(*, is_pending: bool) -> None:
    """20,000 shapes, each at several offsets, whether its own writer has to flush or not."""
    shapes = [f"shape-{number}" for number in range(20_000)]
    group = ShapeGroup(LogOffset(1000, 0))
    group.apply(ShapeEvents.of(sent(each, 1500) for each in shapes if is_pending), now_ms=0, max_pending=4096)
    own = len(group.pack())
    strangers = [
        flushed(each, 2000 + number % 7 + ahead, "own") for number, each in enumerate(shapes) for ahead in (0, 100, 200)
    ]
    group.apply(ShapeEvents.of(strangers), now_ms=0, max_pending=4096)
    # One label and one offset of each shape, however many were notified.
    assert len(group.labels) == 20_000 * (1 + is_pending)
    assert len(group.pack()) - own < 20_000 * 40
    last = [sent("last", 3000), flushed("last", 3000), *(flushed(each, 1500) for each in shapes if is_pending)]
    for events in (last, strangers):
        group.apply(ShapeEvents.of(events), now_ms=0, max_pending=4096)
        assert group.labels == []
        assert len(group.pack()) < 64
        group = ShapeGroup.unpack(group.pack())
