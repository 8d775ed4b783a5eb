"""The chain of a shape's events: what capture writes into them, and what a reader takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest

from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.shape_chain import chain_position, cursor_after, new_items
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.wal.changes import Commit, LogItem, TransactionFragment
from flushtracker.wal.log_offset import LogOffset

COMMIT = Commit("2026-01-01T00:00:00.000000Z", 1)


@dataclass(frozen=True)
class Txn:
    """A transaction: each shape's items, for each of the operations 0, 2, 4, …; two where an update splits."""

    lsn: int
    ops: Sequence[dict[str, int]]

    def items_of(self, shape_id: str, first: int = 0, last: int | None = None) -> tuple[LogItem, ...]:
        return tuple(
            LogItem(LogOffset(self.lsn, 2 * index + half), "insert", "k", {"id": "1"}, None)
            for index, counts in enumerate(self.ops[first:last], start=first)
            for half in range(counts.get(shape_id, 0))
        )


def connection(confirmed_lsn: int, txns: Sequence[Txn], rng: Random) -> Iterator[ShapeChangesEvent]:
    """The shape changes that capture publishes on one connection; the transactions are cut at random."""
    sequencer = FragmentSequencer("s", confirmed_lsn, max_event_bytes=64 << 20)
    for txn in txns:
        if txn.lsn < confirmed_lsn:
            continue
        inner = [at for at in range(1, len(txn.ops)) if rng.random() < 0.5]
        cuts = [0, *inner, len(txn.ops)]
        seen: set[str] = set()
        for first, last in pairwise(cuts):
            end = LogOffset(txn.lsn, 2 * (last - 1))
            commit = COMMIT if last == len(txn.ops) else None
            fragment = TransactionFragment(7, txn.lsn, end, has_begin=first == 0, commit=commit)
            touched = {shape_id for counts in txn.ops[first:last] for shape_id in counts}
            routed = [
                RoutedFragment(
                    *(shape_id, 7, txn.lsn, end, shape_id not in seen, commit),
                    items=txn.items_of(shape_id, first, last),
                )
                for shape_id in sorted(touched | (seen if commit else set()))
            ]
            seen |= touched
            yield from sequencer.sequence(fragment, routed).shape_changes


def random_txns(rng: Random) -> list[Txn]:
    return [
        Txn(1000 + 100 * n, [rng.choice([{}, {"a": 1}, {"a": 2}, {"b": 1}]) for _ in range(rng.randint(1, 6))])
        for n in range(6)
    ]


@dataclass
class Reader:
    """Takes one shape's events as a writer does."""

    cursor: LogOffset | None = None
    taken: list[LogOffset] = field(default_factory=list)
    gaps: int = 0

    def read(self, event: ShapeChangesEvent) -> None:
        position = chain_position(event, self.cursor)
        self.gaps += position == "gap"
        if position == "next":
            self.taken += [item.offset for item in new_items(event, self.cursor)]
            self.cursor = cursor_after(event)


@pytest.mark.parametrize("seed", range(300))
def test_resends_cut_otherwise_are_taken_once(seed: int) -> None:
    """Connections break anywhere, and each resends from a confirmed LSN; every item arrives once, in order."""
    rng = Random(seed)  # noqa: S311  reproducible
    txns, reader = random_txns(rng), Reader()
    for attempt in range(6):
        confirmed = 1000 if reader.cursor is None else rng.choice([1000, reader.cursor.tx_offset])
        events = [event for event in connection(confirmed, txns, rng) if event.shape_id == "a"]
        for event in events if attempt == 5 else events[: rng.randrange(len(events) + 1)]:
            reader.read(event)
    assert reader.gaps == 0
    assert reader.taken == [item.offset for txn in txns for item in txn.items_of("a")]


@pytest.mark.parametrize("seed", range(300))
def test_a_lost_event_is_a_gap_until_a_start(seed: int) -> None:
    """The reader takes nothing past what is lost, then everything once capture connects again."""
    rng = Random(seed)  # noqa: S311  reproducible
    txns, reader = random_txns(rng), Reader()
    expected = [item.offset for txn in txns for item in txn.items_of("a")]
    events = [event for event in connection(1000, txns, rng) if event.shape_id == "a"]
    lost = rng.randrange(len(events) or 1)
    for event in events[:lost] + events[lost + 1 :]:
        reader.read(event)
    before = [item.offset for event in events[:lost] for item in event.items]
    assert reader.taken == before
    assert reader.gaps == max(len(events) - lost - 1, 0)
    for event in connection(1000, txns, rng):
        if event.shape_id == "a":
            reader.read(event)
    assert reader.taken == expected


def test_the_first_event_of_each_shape_starts_its_chain() -> None:
    """It follows the confirmed LSN, also where the source's chain is far on; later ones follow the shape's own last."""
    txns = [Txn(1000, [{"a": 1}]), Txn(1100, [{"b": 1}]), Txn(1200, [{"a": 1}, {"b": 1}])]
    events = list(connection(900, txns, NeverCut()))
    assert [(event.shape_id, event.start, event.follows) for event in events] == [
        ("a", True, LogOffset(899, 0)),
        ("b", True, LogOffset(899, 0)),
        ("a", False, LogOffset(1000, 0)),
        ("b", False, LogOffset(1100, 0)),
    ]


class NeverCut(Random):
    """Whole transactions only."""

    def random(self) -> float:
        return 1.0


def test_a_removed_shape_leaves_nothing_in_the_sequencer() -> None:
    """Its chain is over when the commit names it as removed."""
    sequencer = FragmentSequencer("s", 900, max_event_bytes=64 << 20)
    fragment = TransactionFragment(7, 1000, LogOffset(1000, 0), has_begin=True, commit=None)
    part = RoutedFragment("a", 7, 1000, LogOffset(1000, 0), has_begin=True, commit=None)
    sequencer.sequence(fragment, [part])
    assert len(sequencer._last_of_shape) == 1
    last = LogOffset(1000, 2)
    removed = replace(part, last_log_offset=last, commit=COMMIT, removed=True)
    sequencer.sequence(replace(fragment, last_log_offset=last, commit=COMMIT), [removed])
    assert not sequencer._last_of_shape


AT = LogOffset(1000, 6)
EVENT = ShapeChangesEvent("s", "a", 7, LogOffset(900, 4), AT, start=False, has_begin=True, commit=None)


@pytest.mark.parametrize(
    ("event", "cursor", "position"),
    [
        (EVENT, LogOffset(900, 4), "next"),
        (EVENT, LogOffset.last_of(900), "next"),
        (EVENT, LogOffset(1000, 4), "next"),
        (EVENT, AT, "resend"),
        (EVENT, LogOffset.last_of(1000), "resend"),
        (EVENT, LogOffset(900, 2), "gap"),
        (EVENT, None, "gap"),
        (replace(EVENT, start=True), None, "next"),
        (replace(EVENT, start=True), LogOffset(10, 0), "next"),
        (replace(EVENT, start=True), AT, "resend"),
        (replace(EVENT, commit=COMMIT), AT, "next"),
        (replace(EVENT, commit=COMMIT), LogOffset.last_of(1000), "resend"),
    ],
)
def test_an_event_is_next_a_resend_or_after_a_gap(
    event: ShapeChangesEvent, cursor: LogOffset | None, position: str
) -> None:
    """By what it follows, where it ends, and whether it starts a chain."""
    assert chain_position(event, cursor) == position
