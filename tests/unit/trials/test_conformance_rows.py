"""The rows of shapes with snapshots in the conformance test: what the judge accepts of right and of wrong writers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import pytest

from flushtracker.errors import ConfigError
from flushtracker.events.event_json import dump_json
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.shape_chain import chain_position, cursor_after, new_items
from flushtracker.shape_log.snapshot_reader import SnapshotReader
from flushtracker.trials.conformance.rows_judge import RowsJudge, shown
from flushtracker.trials.conformance.simulated_capture import SimulatedSnapshots
from flushtracker.trials.conformance.simulated_source import SimulatedConnection, SimulatedSource
from flushtracker.trials.conformance.simulated_table import Rows, rows_after
from flushtracker.wal.changes import LogItem
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.log_offset import LogOffset

SHAPE: Final = ("s", "users")
Contains = Callable[[ContainedTransactions, int, int], bool]


def by_xid_and_lsn(contained: ContainedTransactions, lsn: int, xid: int) -> bool:
    return contained.contains(lsn, xid)


@dataclass
class Writer:
    """A writer in memory, with the mistakes that it is given."""

    contains: Contains = by_xid_and_lsn
    mixes_attempts: bool = False
    shows_before_the_end: bool = False
    knows_incarnations: bool = True
    items: dict[LogOffset, tuple[int, LogItem]] = field(default_factory=dict)
    cursor: LogOffset | None = None
    attempts: dict[int, Rows] = field(default_factory=dict)
    reader: SnapshotReader = field(default_factory=SnapshotReader)

    def counts(self, incarnation: int) -> bool:
        """Whether what is of this incarnation counts; a later one begins."""
        if self.knows_incarnations and self.reader.begin(*SHAPE, incarnation):
            self.items, self.attempts = {}, {}
        return not self.knows_incarnations or incarnation == self.reader.incarnation(*SHAPE)

    def take(self, event: ShapeChangesEvent) -> None:
        if self.counts(event.incarnation) and chain_position(event, self.cursor) == "next":
            self.items |= {item.offset: (event.xid, item) for item in new_items(event, self.cursor)}
            self.cursor = cursor_after(event)

    def take_snapshot(self, event: SnapshotEvent) -> None:
        if not self.knows_incarnations:
            event = replace(event, incarnation=1)
        if self.counts(event.incarnation) and self.reader.take(event) != "ignored":
            rows = self.attempts.setdefault(event.attempt, {})
            rows |= {row.key: row.value for row in event.rows}
            if not self.mixes_attempts:
                kept = self.reader.attempts(*SHAPE)
                self.attempts = {attempt: each for attempt, each in self.attempts.items() if attempt in kept}

    def lines(self) -> list[str]:
        """What its rows command prints."""
        complete = self.reader.complete(*SHAPE)
        if complete is None or complete.end is None:
            if not (self.shows_before_the_end and self.attempts):
                return []
            return [dump_json({"source": "s", "shape_id": "users", "rows": self.attempts[max(self.attempts)]})]
        rows = dict(self.attempts[complete.attempt])
        if self.mixes_attempts:
            rows = {key: row for each in self.attempts.values() for key, row in each.items()} | rows
        whole = LogOffset(-1, 0) if self.cursor is None else self.cursor
        for offset in sorted(self.items):
            xid, item = self.items[offset]
            is_whole = offset.tx_offset < whole.tx_offset or whole.op_offset == 2**63 - 1
            if is_whole and not self.contains(complete.end.contained, offset.tx_offset, xid):
                rows = rows_after(rows, [item])
        return [dump_json({"source": "s", "shape_id": "users", "rows": rows})]


class History:
    """Changes and snapshots that reach a writer; some snapshots are ahead of the changes. ``faults``: what is found."""

    def __init__(self, writer: Writer, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  reproducible
        self.source = SimulatedSource("s", ["users", "others"], self.rng, ["users"])
        self.snapshots, self.judge = SimulatedSnapshots(self.source, "users", self.rng), RowsJudge()
        self.connection = SimulatedConnection(self.source, 0, self.rng)
        self.writer = writer
        self.faults: list[str] = []

    def look(self, *, newest: bool = False) -> None:
        notified = {} if self.writer.cursor is None else {SHAPE: self.writer.cursor}
        self.faults += self.judge.faults(self.writer.lines(), notified, newest=newest)

    def send(self) -> None:
        for event in self.connection.next_events():
            if event.shape_id == "users":
                self.judge.sent(event)
                self.writer.take(event)

    def send_snapshot(self, events: list[SnapshotEvent]) -> None:
        for event in events:
            self.judge.snapshot_sent(event)
            self.writer.take_snapshot(event)
            self.look()

    def begin_again(self) -> None:
        """The shape begins again within an attempt, which is published until its end nevertheless."""
        *events, end = self.snapshots.attempt(0)
        self.send_snapshot(events)
        begun = self.source.begin_again("users")
        self.judge.begun(SHAPE, begun)
        if self.rng.random() < 0.5:
            self.writer.counts(begun.number)
        self.look()
        for _ in range(self.rng.randint(0, 6)):
            self.send()
            self.look()
        self.send_snapshot([end])


def play(writer: Writer, seed: int, *, resyncs: bool = False) -> list[str]:
    """What the judge says of the writer."""
    world = History(writer, seed)
    for _ in range(60):
        world.send() if world.rng.random() < 0.6 else world.send_snapshot(world.snapshots.next_events())
        world.look()
        if resyncs and world.rng.random() < 0.05:
            world.begin_again()
    while not world.connection.is_at_end():
        world.send()
    world.send_snapshot(world.snapshots.attempt(0)[:-1])
    world.send_snapshot(world.snapshots.attempt(3))
    assert not world.judge.missing(writer.lines())
    world.look(newest=True)
    while not world.connection.is_at_end():
        world.send()
        world.look(newest=True)
    return world.faults


@pytest.mark.parametrize("seed", range(60))
def test_a_right_writer_has_no_fault_at_any_moment(seed: int) -> None:
    """Whatever is torn, late, ahead of the changes, or unseen by a snapshot although it commits before its end."""
    assert play(Writer(), seed, resyncs=seed % 2 == 0) == []


@pytest.mark.parametrize(
    ("writer", "share"),
    [
        (lambda: Writer(contains=lambda *_: False), 0.7),
        (lambda: Writer(contains=lambda contained, lsn, _: 0 < lsn <= contained.lsn), 0.6),
        (lambda: Writer(contains=lambda contained, lsn, xid: contained.contains(min(lsn, contained.lsn), xid)), 0.6),
        (lambda: Writer(mixes_attempts=True), 0.8),
        (lambda: Writer(shows_before_the_end=True), 0.8),
    ],
    ids=["ignores what it contains", "by LSN alone", "by xid alone", "mixes attempts", "shows it before its end"],
)
def test_a_wrong_writer_is_found_with_most_seeds(writer: Callable[[], Writer], share: float) -> None:
    """Each mistake that the contract warns of."""
    found = [bool(play(writer(), seed)) for seed in range(30)]
    assert sum(found) >= share * len(found)


def test_a_writer_that_mixes_incarnations_is_found_with_most_seeds() -> None:
    """It takes the changes of the next incarnation for those that follow what it has."""
    found = [bool(play(Writer(knows_incarnations=False), seed, resyncs=True)) for seed in range(30)]
    assert sum(found) >= 0.8 * len(found)


def test_a_shape_without_rows_is_missing_once_its_snapshot_is_complete() -> None:
    """Not before."""
    rng = Random(1)  # noqa: S311  reproducible
    judge, snapshots = (
        RowsJudge(),
        SimulatedSnapshots(SimulatedSource("s", ["users", "others"], rng, ["users"]), "users", rng),
    )
    *rows, end = snapshots.attempt(2)
    for event in rows:
        judge.snapshot_sent(event)
    assert judge.missing([]) == []
    judge.snapshot_sent(end)
    assert judge.missing([]) == ["shape 'users' of s has its snapshot, and shows no rows"]


@pytest.mark.parametrize("line", ["", "[]", '{"source":"s","shape_id":"users"}', '{"source":"s","rows":{}}', "{"])
def test_a_line_of_another_form_is_an_error_that_shows_it(line: str) -> None:
    """The rows command is the user's own."""
    with pytest.raises(
        ConfigError, match=r"^line 1 of the rows is .*, but must be an object with source, shape_id and"
    ):
        shown([line])
