"""Shapes that begin again under their ids: capture, the registry and the wire."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from flushtracker.capture.shapes.shape_registry import ShapeRegistry
from flushtracker.errors import ShapeError
from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.changes import Column, Commit, Insert, Relation, TransactionFragment
from flushtracker.wal.log_offset import LogOffset
from tests.support.fake_world import shape_entry
from tests.support.scripted_source import LSN, NAME, KilledError, LongLivedSource, Source, removals

_RELATION = Relation(7, *NAME, "default", (Column("id", 25, is_key=True),))


def of(incarnation: int, shape_id: str = "a") -> ShapeDefinition:
    return ShapeDefinition(shape_id, NAME, incarnation=incarnation)


def fragment(lsn: int, *rows: str, first: bool = True, last: bool = True) -> TransactionFragment:
    """A part of the transaction at ``lsn``, which inserts rows."""
    begin = 0 if first else 10
    inserts = [Insert(_RELATION, LogOffset(lsn, begin + 2 * op), {"id": row}) for op, row in enumerate(rows)]
    commit = Commit("2026-01-01T00:00:00Z", lsn + 24) if last else None
    end = inserts[-1].offset if inserts else LogOffset(lsn, begin)
    return TransactionFragment(lsn, lsn, end, has_begin=first, commit=commit, changes=tuple(inserts))


def test_an_ended_shape_begins_again_above_its_end_although_nothing_was_written_since() -> None:
    """The next commit record may start just where the shape ended, and its removal completes that in the tracker."""
    source = Source()
    source.define(of(1))
    source.subscriptions.end_shapes({"a": "its table was dropped"})
    ended = source.published("a")
    assert [(each.shape_id, each.reason) for each in source.subscriptions.ended] == [("a", "its table was dropped")]
    source.define(of(1))
    assert source.published("a") == ended
    assert [(each.shape_id, each.incarnation) for each in source.subscriptions.ended] == [("a", 1)]
    source.define(of(2))
    begun = source.published("a")
    assert (begun.removed_at, begun.ended_because, begun.starts_visible) == (None, None, False)
    assert source.subscriptions.ended == ()
    assert begun.starts_after == ended.removed_at == LogOffset(source.tables.ends_at, 0)
    assert source.subscriptions.router.shape_ids == {"a"}


def test_a_live_shape_ends_before_it_begins_again() -> None:
    """Both are in the registry in this order, and the removal is published; its definition may be another one."""
    source = Source()
    source.define(of(1), of(1, "b"))
    source.define(replace(of(2), columns=("id",)), of(1, "b"))
    entries = [parse_registry_entry(str(value)) for topic, value in source.publisher.values if topic == "s"]
    mine = [entry for entry in entries if isinstance(entry, ShapeEntry) and entry.definition.id == "a"]
    assert [(each.definition.incarnation, each.removed_at is None) for each in mine] == [
        *((1, True), (1, False), (2, True)),
    ]
    assert "begun again" in str(mine[1].ended_because)
    assert [each.offset for each in removals(source)] == [mine[1].removed_at]
    assert mine[2].definition.columns == ("id",)
    assert mine[1].removed_at is not None
    assert mine[2].starts_after >= mine[1].removed_at
    assert source.published("b").removed_at is None


def test_a_refused_definition_leaves_the_live_incarnation_as_it_is() -> None:
    """A typing error must not end what works."""
    source = Source()
    source.define(of(1))

    def refuse() -> None:
        raise ShapeError("where reads region, which the table does not have")

    source.tables.after_resolve = refuse
    source.define(replace(of(2), where="region = 'eu'"))
    assert ["where reads region" in each.reason for each in source.subscriptions.refused.shown] == [True]
    assert source.published("a").removed_at is None
    assert source.subscriptions.router.shape_ids == {"a"}


def test_an_incarnation_that_has_ended_does_not_return() -> None:
    """An older file would bring back a log that readers have left."""
    source = Source()
    source.define(of(1))
    source.define(of(3))
    source.define(of(2))
    assert ["has incarnation 2, but 3 has begun" in each.reason for each in source.subscriptions.refused.shown] == [
        True
    ]
    assert source.published("a").definition.incarnation == 3


def test_a_removed_and_condensed_shape_begins_again() -> None:
    """What is left of it is enough: its incarnation and its end."""
    for entry in (shape_entry("a", removed_at=LSN), shape_entry("a", removed_at=LSN).condensed()):
        read = parse_registry_entry(entry.to_json())
        assert isinstance(read, ShapeEntry)
        registry = ShapeRegistry([read])
        assert registry.compare([of(2)]).added == (of(2),)
        assert ["an id is never used twice" in str(each.error) for each in registry.compare([of(1)]).refused] == [True]
        registry.put(replace(read, definition=of(2), removed_at=None, is_condensed=False))
        assert list(registry.condensable(10 * LSN, set())) == []


def test_an_incarnation_that_begins_inside_a_transaction_gets_nothing_of_it() -> None:
    """The commit names the shape for the tracker, but the writer gets no event of either incarnation."""
    router, sequencer = EventRouter([of(1)]), FragmentSequencer("7/1/s", 50, max_event_bytes=1 << 20)

    def sequence(part: TransactionFragment) -> tuple[tuple[str, ...], tuple[ShapeChangesEvent, ...]]:
        events = sequencer.sequence(part, router.route(part))
        router.check_invariants()
        return tuple(shape.shape_id for event in events.fragments for shape in event.shapes), events.shape_changes

    assert [each.start for each in sequence(fragment(100, "1"))[1]] == [True]
    assert len(sequence(fragment(200, "2", last=False))[1]) == 1
    router.remove_shape("a")
    router.add_shape(of(2), starts_after=300)
    assert sequence(fragment(200, "3", first=False)) == (("a",), ())
    assert sequence(fragment(300, "4")) == ((), ())
    (event,) = sequence(fragment(400, "5"))[1]
    assert (event.incarnation, event.start) == (2, True)
    assert '"incarnation":2' in event.to_json()
    (event,) = sequence(fragment(500, "6"))[1]
    assert (event.incarnation, event.start, event.follows) == (2, False, LogOffset(400, 0))


def test_the_chain_of_an_incarnation_begins_with_a_start() -> None:
    """Outside of a transaction, nothing else would tell its first event from the next one of the last."""
    router, sequencer = EventRouter([of(1)]), FragmentSequencer("7/1/s", 50, max_event_bytes=1 << 20)
    for lsn, incarnation in ((100, 1), (200, 2), (300, 3)):
        if incarnation > 1:
            router.remove_shape("a")
            router.add_shape(of(incarnation))
        (event,) = sequencer.sequence(fragment(lsn, "1"), router.route(fragment(lsn, "1"))).shape_changes
        assert (event.incarnation, event.start) == (incarnation, True)
    with pytest.raises(ShapeError, match="is in use"):
        router.add_shape(of(4))


def writer_of(incarnation: int) -> str:
    """The writer of an incarnation in :class:`ResyncedSource`: mostly another one than before."""
    return ("log", "own", "search", "search")[incarnation % 4]


class ResyncedSource(LongLivedSource):
    """A source whose shapes begin again, with other writers, and what is known of each incarnation."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = {"a": 1, "b": 1, "c": 1}
        self.begun: dict[tuple[str, int], ShapeEntry] = {}
        self.ended: dict[tuple[str, int], LogOffset] = {}

    def apply(self) -> None:
        self.subscriptions.apply_definitions(
            [replace(of(number, name), writer=writer_of(number)) for name, number in self.wanted.items()], 1000
        )

    def note(self) -> None:
        """Note what has reached the registry, in the order in which it did."""
        for topic, value in self.publisher.values:
            entry = parse_registry_entry(str(value)) if topic == "s" else None
            if isinstance(entry, ShapeEntry):
                key = entry.definition.id, entry.definition.incarnation
                self.begun.setdefault(key, entry)
                if entry.removed_at is not None:
                    assert self.ended.setdefault(key, entry.removed_at) == entry.removed_at
        self.publisher.values.clear()

    def check(self) -> None:
        """Incarnations do not overlap, and whatever has ended is completed for the tracker, and nothing else is."""
        for shape_id in self.wanted:
            numbers = sorted(number for name, number in self.begun if name == shape_id)
            for earlier, later in pairwise(numbers):
                ended_at = self.ended[shape_id, earlier]
                assert self.begun[shape_id, later].starts_after >= ended_at
                # Nothing that any process has routed commits above the end.
                assert self.begun[shape_id, earlier].starts_after.tx_offset <= ended_at.tx_offset
            for number in numbers:
                completed = self.completed(shape_id, writer_of(number))
                ended = self.ended.get((shape_id, number))
                if ended is None:
                    assert completed <= self.begun[shape_id, number].starts_after.tx_offset
                elif ended.tx_offset >= self.confirmed_lsn:
                    assert completed >= ended.tx_offset
        router = self.subscriptions.router
        router.check_invariants()
        assert router.shape_ids == set(self.live())

    def completed(self, shape_id: str, writer: str) -> int:
        """Up to where the last removal in the compacted topic completes what the writer was sent of the shape."""
        text = self.topics.topics.get(("l", f'["7/1/s","{shape_id}","removed","{writer}"]'))
        return -1 if text is None else FlushNotification.from_json(text).offset.tx_offset


@pytest.mark.parametrize("seed", range(100))
def test_no_removal_completes_what_a_later_incarnation_is_sent(seed: int) -> None:
    """Shapes end and begin again, and capture is killed before any record; the WAL may stand still meanwhile.

    A removal that reached into the next incarnation would let an ack pass changes that are not durable; one that was
    lost would hold the slot for ever.
    """
    rng, source = Random(seed), ResyncedSource()  # noqa: S311  reproducible
    for _ in range(40):
        source.topics.records_left = rng.choice([1_000_000, 1_000_000, rng.randint(0, 8)])
        try:
            match rng.randrange(5):
                case 0 | 1:
                    for shape_id in rng.sample(sorted(source.wanted), rng.randint(1, 3)):
                        source.wanted[shape_id] += 1
                    source.apply()
                case 2:
                    live = source.live()
                    reasons = dict.fromkeys(rng.sample(live, min(len(live), rng.randint(1, 2))), "it cannot go on")
                    source.subscriptions.end_shapes(reasons)
                case 3:
                    source.tables.ends_at += rng.choice([1, 300])
                case _:
                    source.confirmed_lsn = min(source.confirmed_lsn + rng.choice([0, 1, 600]), source.tables.ends_at)
                    source.subscriptions.removed.condense(source.confirmed_lsn)
        except KilledError:
            source.note()
            source.restart()
        if rng.random() < 0.2:
            source.restart(behind=rng.choice([0, 1, 600]))
        source.note()
        source.check()
    source.topics.records_left = 1_000_000
    source.wanted = {shape_id: number + 1 for shape_id, number in source.wanted.items()}
    source.apply()
    source.note()
    source.check()
    found = {entry.definition.id: entry for entry in source.subscriptions.entries.shapes}
    assert {shape_id: entry.definition.incarnation for shape_id, entry in found.items()} == source.wanted
    assert set(source.live()) == set(source.wanted)
