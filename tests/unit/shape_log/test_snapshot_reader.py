"""How a writer puts a snapshot together: attempts that are torn, late, cut and read again, and what they contain."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pytest

from flushtracker.errors import DecodeError
from flushtracker.events.snapshot_events import SnapshotEnd, SnapshotEvent, SnapshotRow
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.snapshot.published_attempt import PublishedAttempt
from flushtracker.shape_log.snapshot.read_ranges import ShapeReadError
from flushtracker.shape_log.snapshot_reader import SnapshotCursor, SnapshotReader
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.log_offset import LogOffset
from tests.support.snapshot_log import judge, world_with_snapshot
from tests.support.snapshot_world import SnapshotWorld, Table

SHAPE: Final = ("7301/1/shapes", "users")
NOTHING: Final = ContainedTransactions(0, ())


Read = SnapshotEvent | int
"""An event, or the incarnation that an entry or a change names, which are in other topics."""


def attempt_events(rng: random.Random, attempt: int, incarnation: int) -> list[SnapshotEvent]:
    """All events of an attempt with some rows."""
    count = rng.randint(0, 4)
    rows = [(SnapshotRow(f"{attempt}.{number}", {"id": "1"}),) for number in range(count)]
    events = [SnapshotEvent(*SHAPE, attempt, number, row, None, incarnation) for number, row in enumerate(rows)]
    end = SnapshotEnd(count, ContainedTransactions(attempt, ()))
    return [*events, SnapshotEvent(*SHAPE, attempt, count, (), end, incarnation)]


def partition(rng: random.Random) -> list[Read]:
    """What is read: attempts, some torn, some of a process that was frozen while the next ones were made.

    The shape begins again now and then, perhaps within an attempt.
    """
    found, late, incarnation = list[Read](), list[SnapshotEvent](), 1
    for attempt in range(1, rng.randint(2, 7)):
        events = attempt_events(rng, attempt, incarnation)
        done = rng.choice([len(events), len(events), rng.randrange(len(events))])
        for event in events[:done]:
            found.append(event)
            if late and rng.random() < 0.4:
                found.append(late.pop(0))
            if rng.random() < 0.1:
                incarnation += 1
                found += [incarnation] * rng.randint(0, 1)
        late = [*late, *events[done:]] if rng.random() < 0.5 else []
    return found


def expected(read: list[Read]) -> tuple[int, set[str]] | None:
    """By definition: of the attempts whose events are all there, in order, none behind the begin of a later one.

    Of the last incarnation that anything has named.
    """
    best, events = None, [event for event in read if isinstance(event, SnapshotEvent)]
    last = max((each if isinstance(each, int) else each.incarnation for each in read), default=1)
    for end in (event for event in events if event.end is not None and event.incarnation == last):
        before = events[: events.index(end)]
        own = [event for event in before if event.attempt == end.attempt]
        is_overtaken = any(
            event.number == 0 and event.attempt > end.attempt and event.incarnation == last for event in before
        )
        if [event.number for event in own] == list(range(end.number)) and not is_overtaken:
            best = end.attempt, {row.key for event in own for row in event.rows}
    return best


@dataclass
class Storage:
    """What a writer has stored durably; ``position`` is how far it has read the partition."""

    position: int = 0
    rows: dict[int, set[str]] = field(default_factory=dict)
    cursor: SnapshotCursor | None = None
    complete: SnapshotEvent | None = None

    def reader(self) -> SnapshotReader:
        cursors = {} if self.cursor is None else {SHAPE: self.cursor}
        # As stored, and so through JSON.
        complete = [] if self.complete is None else [SnapshotEvent.from_json(self.complete.to_json())]
        return SnapshotReader(cursors, complete)

    def after(self, reader: SnapshotReader, events: list[Read]) -> "Storage":
        """What it is once these are taken, in one transaction."""
        rows = {attempt: set(keys) for attempt, keys in self.rows.items()}
        for event in events:
            if reader.begin(*SHAPE, event if isinstance(event, int) else event.incarnation):
                rows = {}
            if isinstance(event, int) or reader.take(event) == "ignored":
                continue
            rows.setdefault(event.attempt, set()).update(row.key for row in event.rows)
            rows = {attempt: keys for attempt, keys in rows.items() if attempt in reader.attempts(*SHAPE)}
        return Storage(self.position + len(events), rows, reader.cursor(*SHAPE), reader.complete(*SHAPE))


@pytest.mark.parametrize("seed", range(400))
def test_readers_have_the_last_complete_attempt_and_no_row_of_another(seed: int) -> None:
    """Whatever is torn, late or read again, and whenever the writer is killed; two attempts are stored at most."""
    rng = random.Random(seed)  # noqa: S311  reproducible
    log, storage = partition(rng), Storage()
    reader = storage.reader()
    while storage.position < len(log):
        events = log[storage.position : storage.position + rng.randint(1, 3)]
        after = storage.after(reader, events)
        if rng.random() < 0.2:
            reader = storage.reader()  # Killed before the end of the storage transaction.
            continue
        storage = after
        if rng.random() < 0.2:
            reader = storage.reader()
            storage.position = rng.randint(0, storage.position)  # It reads again from an earlier one.
        wanted = expected(log[: storage.position])
        if storage.complete is None or wanted is None:
            # A position that went back has less to show than is stored, and may not know of a later incarnation.
            begun = 1 if storage.cursor is None else storage.cursor.incarnation
            assert wanted is None or begun > incarnation_of(log, wanted[0])
        else:
            assert storage.complete.attempt >= wanted[0]
            assert storage.complete.incarnation == reader.incarnation(*SHAPE)
            assert storage.rows.get(storage.complete.attempt, set()) == expected_rows(log, storage.complete.attempt)
        assert len(storage.rows) <= 2
    final = expected(log)
    found = None if storage.complete is None else storage.complete.attempt
    assert found == (None if final is None else final[0])


def events_of(log: list[Read], attempt: int) -> list[SnapshotEvent]:
    return [event for event in log if isinstance(event, SnapshotEvent) and event.attempt == attempt]


def incarnation_of(log: list[Read], attempt: int) -> int:
    return events_of(log, attempt)[0].incarnation


def expected_rows(log: list[Read], attempt: int) -> set[str]:
    return {row.key for event in events_of(log, attempt) for row in event.rows}


def test_an_attempt_that_was_begun_before_its_shape_began_again_never_counts() -> None:
    """The job is slow, or was frozen: it publishes the end of its attempt after the resync, and after the next attempt.

    The writer may know of the resync by an entry, a change, or the new attempt.
    """
    end = SnapshotEnd(0, NOTHING)
    old = [SnapshotEvent(*SHAPE, 5, number, (), end if number else None) for number in range(2)]
    new = [SnapshotEvent(*SHAPE, 6, number, (), end if number else None, 2) for number in range(2)]
    reader = SnapshotReader()
    assert [reader.take(old[0]), reader.begin(*SHAPE, 2), reader.begin(*SHAPE, 2)] == ["first", True, False]
    assert (reader.take(old[1]), reader.complete(*SHAPE), reader.attempts(*SHAPE)) == ("ignored", None, frozenset())
    reader = SnapshotReader()
    assert [reader.take(event) for event in [old[0], new[0], old[1], new[1]]] == ["first", "first", "ignored", "next"]
    assert reader.complete(*SHAPE) == new[1]
    reader = SnapshotReader({SHAPE: SnapshotCursor(5, 2)}, [old[1]])
    assert [reader.take(event) for event in [*new, *old]] == ["first", "next", "ignored", "ignored"]


def test_an_attempt_of_which_events_were_deleted_by_age_is_never_complete() -> None:
    """The reader begins behind its first events."""
    reader = SnapshotReader()
    rest = [SnapshotEvent(*SHAPE, 5, 2), SnapshotEvent(*SHAPE, 5, 3, (), SnapshotEnd(0, NOTHING))]
    assert [reader.take(event) for event in rest] == ["ignored", "ignored"]
    assert reader.complete(*SHAPE) is None
    assert reader.attempts(*SHAPE) == frozenset()


class Recorded:
    """Takes the place of the publisher; ``pending`` records are confirmed one for each poll."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str]] = []
        self.pending = 0

    def publish(self, topic: str, key: str, value: str) -> None:
        assert json.loads(key) == list(SHAPE)
        self.records.append((topic, value))
        self.pending += 1

    def poll(self, _: float) -> None:
        self.pending -= 1

    def events(self, topic: str) -> list[SnapshotEvent]:
        return [SnapshotEvent.from_json(value) for name, value in self.records if name == topic]


def published(rows: Mapping[str, Mapping[str, str | None]], contained: ContainedTransactions, most: int) -> Recorded:
    """What is published for these rows, in events of at most so many bytes."""
    publisher = Recorded()
    attempt = PublishedAttempt(publisher, {"snapshots": "s", "snapshots_taken": "t"}, most, SHAPE[0], 7)
    attempt.begin({SHAPE[1]: 1})
    attempt.add([{"shape_id": SHAPE[1], "key": key, "value": json.dumps(row)} for key, row in rows.items()])

    def wait() -> None:
        ends = [topic for topic, value in publisher.records if SnapshotEvent.from_json(value).end is not None]
        # Nothing follows before what it says is confirmed.
        assert publisher.pending <= len(ends) or not ends
        assert ends.count("t") == 0 or ends == ["s", "t"]

    attempt.end([SHAPE[1]], contained, wait)
    assert publisher.pending == 0
    return publisher


def test_every_state_after_a_published_snapshot_is_one_of_the_table() -> None:
    """Published, cut to any size, put together, and folded with the changes that it does not contain."""
    left_out = 0
    for seed in range(300):
        world, snapshot, table = world_with_snapshot(seed)
        publisher = published(table, snapshot.contained, world.rng.choice([220, 300, 10_000]))
        reader, rows = SnapshotReader(), dict[str, dict[str, str | None]]()
        for event in publisher.events("s"):
            assert reader.complete(*SHAPE) is None
            assert reader.take(event) == ("next" if event.number else "first")
            rows |= {row.key: {**row.value} for row in event.rows}
        assert rows == table
        left_out += judge(world, rows, partial(contains, reader))
    assert left_out > 100


def contains(reader: SnapshotReader, lsn: int, xid: int, incarnation: int = 1) -> bool:
    last = LogOffset(lsn, 4)
    event = ShapeChangesEvent(*SHAPE, xid, LogOffset(-1, 0), last, start=True, has_begin=True, commit=None)
    return reader.contains(replace(event, incarnation=incarnation))


def test_an_earlier_incarnation_is_contained_and_a_later_one_is_not() -> None:
    """Its xid of 32 bits may be one that was in progress at the snapshot, four billion transactions later."""
    reader = SnapshotReader()
    end = SnapshotEnd(0, ContainedTransactions(900, ((5, 7),)))
    reader.take(SnapshotEvent(*SHAPE, 8, 0, (), end, 2))
    assert [contains(reader, 800, xid, 2) for xid in (4, 6)] == [True, False]
    assert [contains(reader, 800, xid, 1) for xid in (4, 6)] == [True, True]
    assert [contains(reader, 800, xid, 3) for xid in (4, 6)] == [False, False]


def test_a_row_too_large_for_an_event_is_refused_with_its_size() -> None:
    """Rows beside it would fit."""
    rows: Table = {"a": {"id": "1"}, "b": {"id": "x" * 1000}}
    with pytest.raises(ShapeReadError) as raised:
        published(rows, NOTHING, 500)
    (reason,) = raised.value.reasons.values()
    assert str(reason).startswith("shape 'users': a row has 1")
    assert str(reason).endswith(" bytes as an event, more than max_event_bytes, 500; raise it")


@pytest.mark.parametrize(
    ("field_name", "text", "problem"),
    [
        ("attempt", "0", r"Expected `int` >= 1 - at `\$\.attempt`"),
        ("number", "-1", r"Expected `int` >= 0 - at `\$\.number`"),
        ("rows", '[{"key":"a"}]', "missing required field `value`"),
        ("rows", '[{"key":"","value":{}}]', r"Expected `str` of length >= 1 - at `\$\.rows\[0\]\.key`"),
        ("end", '{"rows":1,"lsn":2,"unseen":[[1]]}', r"Expected `array` of length 2 - at `\$\.end\.unseen"),
        ("end", '{"rows":1,"lsn":2,"unseen":[[5,6],[6,7]]}', "expected ascending ranges"),
        ("end", '{"rows":1,"lsn":2,"unseen":[[1,4294967296]]}', "expected ascending ranges of 32-bit xids"),
        ("end", '{"rows":1,"lsn":2,"unseen":[[1,2.0]]}', r"Expected `int`, got `float` - at `\$\.end\.unseen"),
    ],
)
def test_malformed_event_is_an_error_that_names_the_field(field_name: str, text: str, problem: str) -> None:
    """What a writer cannot read it cannot store."""
    fields = json.loads(SnapshotEvent(*SHAPE, 1, 0).to_json()) | {field_name: json.loads(text)}
    with pytest.raises(DecodeError, match=problem):
        SnapshotEvent.from_json(json.dumps(fields))


def test_the_world_has_what_the_tests_are_about() -> None:
    """Transactions that a snapshot lacks although they commit below its end of the WAL."""
    worlds: list[SnapshotWorld] = []
    unseen = 0
    for seed in range(300):
        world, snapshot, _ = world_with_snapshot(seed)
        worlds.append(world)
        unseen += sum((each.lsn or 0) <= snapshot.lsn and each not in world.seen[1] for each in world.routed)
    assert unseen > 50
