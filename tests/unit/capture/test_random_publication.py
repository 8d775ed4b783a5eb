"""A managed publication in random histories: shapes, other roles' statements and crashes between any two steps.

The catalog is a model: some tables can be added to the publication, others have to be added by somebody else, and each
call of capture may be its last one. Entries of the file go wrong and are corrected, and so do tables. In each state, a
live shape's table is published, and no shape that the file still has was removed; and after a quiet moment exactly the
tables of shapes are published, and every shape is live that is not refused, and whose table can be published or was.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from random import Random
from typing import Final

from flushtracker.capture.shapes.delayed_shapes import DelayedShapes
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.errors import ShapeError, first_of
from flushtracker.events.topic_rules import Topics
from flushtracker.shapes.definition import ShapeDefinition, ShapeFault
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.unpublished import Unpublished
from flushtracker.wal.mvcc_snapshot import CatalogRow, MvccSnapshot
from tests.support.fake_publisher import FakePublisher, source_entries
from tests.support.key_bindings import ID_KEY
from tests.support.quiet_server import QuietServer
from tests.support.seeded_histories import played

TABLES: Final = (1, 2, 3)
FOREIGN: Final = 3
"""The table that only somebody else may add."""
HISTORIES: Final = 60
STEPS: Final = 60
CONFIRMED: Final = 1_000


class KilledError(BaseException):
    """Capture is killed."""


class Catalog(QuietServer):
    """Three tables and a publication; ``dies_at`` counts the calls that alter it, before and after each."""

    def __init__(self) -> None:
        self.published: dict[int, int] = {}
        """By table, the xid of the row that publishes it."""
        self.open: dict[int, int] = {}
        """The open transactions, each with the table that it has changed."""
        self.next = 1_000
        self.dies_at = -1
        self.wal = CONFIRMED
        self.unfit: set[int] = set()
        """The tables that do not allow a new shape."""
        self.altered: int | None = None
        """The table that somebody makes unfit just when it is published."""

    def may_die(self) -> None:
        self.dies_at -= 1
        if self.dies_at == 0:
            raise KilledError

    def add(self, oid: int) -> None:
        if oid not in self.published:
            self.published[oid] = self.next_xid()

    def publish_tables(self, oids: Collection[int]) -> dict[int, Unpublished]:
        refused = {}
        for oid in sorted(oids):
            if oid == FOREIGN:
                refused[oid] = Unpublished("not the owner", f"ADD {oid}")
                continue
            self.may_die()
            self.add(oid)
            if oid == self.altered:
                self.unfit.add(oid)
            self.may_die()
        return refused

    def can_publish(self, oids: Collection[int]) -> bool:
        return any(oid != FOREIGN for oid in oids)

    def retract_tables(self, used: Collection[int]) -> None:
        for oid in sorted(self.published.keys() - set(used) - {FOREIGN}):
            self.may_die()
            del self.published[oid]
            self.may_die()

    def publication_rows(self, oids: Iterable[int]) -> dict[int, frozenset[CatalogRow]]:
        found = {oid: self.published[oid] for oid in oids}
        return {oid: frozenset({CatalogRow(f"table {oid}", xid)}) for oid, xid in found.items()}

    def snapshot(self) -> MvccSnapshot:
        return MvccSnapshot(min(self.open, default=self.next), self.next, tuple(sorted(self.open)))

    def in_progress(self) -> dict[int, bool]:
        return dict.fromkeys(self.open, False)

    def next_xid(self) -> int:
        self.next += 1
        return self.next - 1

    def unnoticed_rows(self, _oids: Iterable[int]) -> dict[int, frozenset[int]]:
        return {}

    def writers(self, oids: Iterable[int]) -> dict[int, frozenset[int]]:
        return {oid: frozenset(xid for xid, table in self.open.items() if table == oid) for oid in oids}

    def wal_end(self) -> int:
        self.wal += 10
        return self.wal

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> list[tuple[ShapeDefinition, TableBinding]]:
        found = [(each, int(each.table[1][1:])) for each in definitions]
        errors = {each.id: ShapeError(f"{each.id}: no such column") for each, oid in found if oid in self.unfit}
        if errors:
            raise first_of(errors)
        return [(replace(each, primary_key=("id",)), self.binding(oid)) for each, oid in found]

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        return {oid: self.binding(oid) for oid in oids}

    def binding(self, oid: int) -> TableBinding:
        row = self.published.get(oid)
        published_by = () if row is None else (f"table {row}",)
        column = ColumnBinding(1, "id", 25, -1, 5)
        return TableBinding(oid, ("public", f"t{oid}"), ID_KEY, (column,), published_by=published_by)

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        raise AssertionError(f"{oid} at {xid}: nothing is sent")

    def empty_at(self, oid: int) -> int | None:
        raise AssertionError(f"{oid} is no partition")

    def check_publication(self) -> str:
        return "1/1"


class History:
    """One history of a seed: a file with shapes, and capture, which does what its timers do."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  not for secrets
        self.catalog = Catalog()
        self.publisher = FakePublisher()
        self.file: dict[str, ShapeDefinition] = {}
        self.bad: set[str] = set()
        """The entries of the file that are wrong."""
        self.has_unreadable = False
        """Whether the file also has an entry of which nothing is known."""
        self.defined = 0
        self.crashes = 0
        self.refused = 0
        """How often both an entry and a table were wrong."""
        self.unpublished = 0
        self.delayed = 0
        """How often a shape was seen to wait for its table, or for a transaction."""
        self.restart()

    def restart(self) -> None:
        """Another process: it knows what the registry has, and applies the file."""
        topics = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
        known = source_entries(self.publisher.registry())
        outbox = Outbox(self.publisher, topics, lambda _: None, EventLimit(1 << 20, 1 << 20))
        self.capture = Subscriptions("7/1/s", known, outbox, self.catalog, CONFIRMED, DelayedShapes())
        self.capture.tables.check()
        self.apply_file()
        self.capture.begin_source()

    def apply_file(self) -> None:
        """What of the file is right, and the faults of the rest: these remove no shape."""
        removed = self.removed()
        right = [definition for shape_id, definition in self.file.items() if shape_id not in self.bad]
        ids = [*sorted(self.bad), *([None] if self.has_unreadable else [])]
        faults = [ShapeFault(shape_id, ShapeError(f"{shape_id} is wrong")) for shape_id in ids]
        self.capture.apply_definitions(right, allow_removing=100, faults=faults)
        assert not (self.has_unreadable and self.removed() != removed)
        self.applied = self.content()

    def content(self) -> object:
        return tuple(self.file), frozenset(self.bad), self.has_unreadable

    def removed(self) -> set[str]:
        """The shapes that capture has taken for ones that their owner removed."""
        entries = self.capture.entries.shapes
        return {each.definition.id for each in entries if each.removed_at is not None and each.ended_because is None}

    def play(self) -> None:
        for _ in range(STEPS):
            steps = [self.define, self.define, self.remove, self.replace, self.statement, self.kill]
            self.rng.choice([*steps, self.begin, self.end, self.spoil, self.correct, self.alter])()
            self.guarded(self.timers)
            self.check_safe()
            self.refused += bool(self.bad and self.catalog.unfit)
            self.unpublished += any(each.statement for each in self.capture.waiting)
            self.delayed += any(each.statement is None for each in self.capture.waiting)
        self.catalog.dies_at = -1
        self.catalog.altered = None
        self.catalog.open.clear()
        self.has_unreadable = False
        self.check_quiet()
        self.bad.clear()
        self.catalog.unfit.clear()
        self.check_quiet()
        assert self.capture.refused.count == 0

    def guarded(self, action: object) -> None:
        try:
            assert callable(action)
            action()
        except KilledError:
            self.crashes += 1
            self.restart()

    def timers(self) -> None:
        self.capture.tables.check()
        if self.capture.can_add_delayed() or self.capture.refused.definitions:
            self.capture.add_waiting()
        if self.content() != self.applied:
            self.apply_file()
        needed = {int(each.table[-1]) for each in self.capture.waiting} & self.catalog.published.keys()
        self.capture.retract_tables()
        assert needed <= self.catalog.published.keys(), "a delayed shape needs its table"

    def define(self) -> None:
        self.defined += 1
        table = ("public", f"t{self.rng.choice(TABLES)}")
        self.file[f"s{self.defined}"] = ShapeDefinition(f"s{self.defined}", table)

    def remove(self) -> None:
        for shape_id in self.rng.sample(sorted(self.file), min(len(self.file), self.rng.randint(1, 3))):
            del self.file[shape_id]
            self.bad.discard(shape_id)

    def replace(self) -> None:
        """In one change of the file."""
        self.remove()
        self.define()

    def statement(self) -> None:
        """Somebody adds the table that capture may not add, or takes a table out by hand."""
        if self.rng.random() < 0.4:
            self.catalog.add(FOREIGN)
        else:
            self.catalog.published.pop(self.rng.choice(TABLES), None)
            # Its shapes end.
            self.capture.tables.check()

    def spoil(self) -> None:
        """Somebody edits the file, and some entries are wrong then, or one has no id."""
        self.bad |= set(self.rng.sample(sorted(self.file), min(len(self.file), 2)))
        self.has_unreadable = self.rng.random() < 0.2

    def correct(self) -> None:
        """The file, or the tables."""
        if self.rng.random() < 0.5:
            self.bad.clear()
            self.has_unreadable = False
        else:
            self.catalog.unfit.clear()

    def alter(self) -> None:
        """A table loses a column that new shapes need, perhaps in the middle of an attempt to add one."""
        table = self.rng.choice(TABLES)
        self.catalog.altered = table
        if self.rng.random() < 0.5:
            self.catalog.unfit.add(table)

    def begin(self) -> None:
        """A transaction changes a table, and stays open."""
        self.catalog.open[self.catalog.next_xid()] = self.rng.choice(TABLES)

    def end(self) -> None:
        for xid in self.rng.sample(sorted(self.catalog.open), len(self.catalog.open) // 2):
            del self.catalog.open[xid]

    def kill(self) -> None:
        self.catalog.dies_at = self.rng.randint(1, 4)

    def check_safe(self) -> None:
        """A live shape has had all since it was added: its table is published, by the row that it was added with."""
        for entry in self.capture.entries.shapes:
            if entry.removed_at is None:
                row = self.catalog.published.get(entry.table_oid)
                assert self.capture.tables.bound[entry.table_oid].published_by == (f"table {row}",)
        assert not self.removed() & self.file.keys(), "a shape that the file has was removed"

    def check_quiet(self) -> None:
        for _ in range(2):
            self.timers()
        self.check_safe()
        shapes = {entry.definition.id: entry for entry in self.capture.entries.shapes}
        live = {shape_id for shape_id, entry in shapes.items() if entry.removed_at is None}
        waiting = {shape_id for each in self.capture.waiting for shape_id in each.shape_ids}
        ended = {shape_id for shape_id, entry in shapes.items() if entry.ended_because is not None}
        refused = self.bad | {
            each for each, shape in self.file.items() if int(shape.table[1][1:]) in self.catalog.unfit
        }
        assert set(self.file) - refused <= live | waiting | ended
        assert self.capture.refused.count == len((refused - live - ended - waiting) | self.bad)
        assert {self.file[each].table[1] for each in waiting} <= {f"t{FOREIGN}"}
        assert not waiting or FOREIGN not in self.catalog.published
        used = {shapes[each].table_oid for each in live}
        assert self.catalog.published.keys() - {FOREIGN} == used - {FOREIGN}


def test_live_shapes_are_published_and_nothing_else_is() -> None:
    """Whatever is killed, taken out by hand, or added by somebody else."""
    histories = list(played(History, HISTORIES))
    assert sum(history.crashes for history in histories) > HISTORIES
    assert sum(history.unpublished for history in histories) > HISTORIES
    assert sum(history.refused for history in histories) > HISTORIES
    assert sum(history.delayed for history in histories) > HISTORIES
