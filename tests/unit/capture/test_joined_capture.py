"""Capture of shapes with subqueries: bound to all of their tables, delayed by any, and ended by a change of any."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import pytest

from flushtracker.capture.shapes.delayed_shapes import DelayedShapes
from flushtracker.events.registry_events import TableEntry
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from tests.support.key_bindings import ID_KEY
from tests.support.scripted_source import LSN, ScriptedTables, Source


def table(oid: int, name: str, *columns: str) -> TableBinding:
    found = tuple(ColumnBinding(number, column, 23, -1, 5) for number, column in enumerate(columns, 1))
    return TableBinding(oid, ("public", name), ID_KEY, found, published_by=("all tables",))


TASKS: Final = table(7, "tasks", "id", "project", "note")
PROJECTS: Final = table(8, "projects", "id", "org", "note")
OPEN: Final = ShapeDefinition(
    "open", TASKS.table, where="project IN (SELECT id FROM public.projects WHERE org = 7)", columns=("id",)
)
PLAIN: Final = ShapeDefinition("plain", TASKS.table)


class TwoTables(ScriptedTables):
    """A catalog of two tables, as they are ``now``."""

    def __init__(self) -> None:
        super().__init__()
        self.now: dict[int, TableBinding] = {each.oid: each for each in (TASKS, PROJECTS)}

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> list[tuple[ShapeDefinition, TableBinding]]:
        found = []
        for definition in definitions:
            inner = () if definition.where is None else (InnerTable(PROJECTS.table, 8, ("id",)),)
            completed = replace(definition, primary_key=("id",), inner_tables=inner)
            found += [(completed, self.now[oid]) for oid in (7, *(each.table_oid for each in inner))]
        return found

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        return {oid: self.now[oid] for oid in oids if oid in self.now}


class TwoTableSource(Source):
    def __init__(self) -> None:
        super().__init__()
        self.catalog = self.tables = TwoTables()
        self.resume(self.registered(), LSN)


@pytest.fixture
def source() -> TwoTableSource:
    return TwoTableSource()


def test_all_tables_are_recorded_before_the_shape_is(source: TwoTableSource) -> None:
    """So the next process knows them, and what the shape was bound to."""
    source.define(OPEN, PLAIN)
    kinds = [type(entry).__name__ for entry in source.registry()[1:]]
    assert kinds == ["TableEntry", "TableEntry", "ShapeEntry", "ShapeEntry"]
    assert {entry.binding for entry in source.registry() if isinstance(entry, TableEntry)} == {TASKS, PROJECTS}
    entry = source.published("open")
    assert (entry.table_oid, entry.table_oids) == (7, (7, 8))
    assert not source.registered().unbound_shapes()
    router = source.subscriptions.router
    router.check_invariants()
    assert router.tables.has_shapes_on(8)
    assert router.part("open", 8).used_columns == frozenset({"id", "org"})
    source.resume(source.registered(), LSN)
    assert source.subscriptions.router.tables.has_shapes_on(8)
    source.define(PLAIN)
    assert not source.subscriptions.router.tables.has_shapes_on(8)


def test_a_column_that_only_a_subquery_reads_ends_the_shape_when_it_is_dropped(source: TwoTableSource) -> None:
    """Another column of that table does not; and shapes without subqueries go on."""
    source.define(OPEN, PLAIN)
    without_note = replace(PROJECTS, columns=PROJECTS.columns[:2])
    source.catalog.now[8] = without_note
    source.subscriptions.tables.check()
    assert source.published("open").removed_at is None
    source.catalog.now[8] = replace(without_note, columns=PROJECTS.columns[:1])
    source.subscriptions.tables.check()
    assert source.published("open").ended_because == "column org of table public.projects was dropped"
    assert source.published("plain").removed_at is None


def test_a_shape_that_copies_whole_tables_is_warned_of(
    source: TwoTableSource, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no condition beside or in the subquery leaves any row out."""
    copied = {
        "project IN (SELECT id FROM public.projects)": "public.tasks, public.projects",
        "project IN (SELECT id FROM public.projects WHERE org = 7)": "public.tasks",
        "note = 1 AND project IN (SELECT id FROM public.projects)": "public.projects",
        "note = 1 AND project IN (SELECT id FROM public.projects WHERE org = 7)": None,
    }
    for number, (where, tables) in enumerate(copied.items()):
        caplog.clear()
        source.define(replace(OPEN, id=f"shape {number}", where=where), PLAIN)
        warned = [each.getMessage() for each in caplog.records if "whole tables" in each.getMessage()]
        assert [text.partition("tables=")[2] for text in warned] == ([] if tables is None else [tables]), where


def test_a_table_of_a_subquery_that_is_dropped_ends_the_shape(source: TwoTableSource) -> None:
    source.define(OPEN, PLAIN)
    del source.catalog.now[8]
    source.subscriptions.tables.check()
    assert source.published("open").ended_because == "table public.projects was dropped"
    assert source.published("plain").removed_at is None
    source.subscriptions.router.check_invariants()


def test_a_shape_waits_until_all_of_its_tables_are_published(source: TwoTableSource) -> None:
    """What it waits for is named; meanwhile none of its tables leaves the publication."""
    unpublished = replace(PROJECTS, published_by=())
    source.catalog.now[8] = unpublished
    source.define(OPEN, PLAIN)
    assert source.subscriptions.router.shape_ids == {"plain"}
    (waiting,) = source.subscriptions.waiting
    assert (waiting.table, waiting.shape_ids) == ("public.projects", ("open",))
    delayed: DelayedShapes = source.subscriptions._delayed
    assert delayed.table_oids == {7, 8}
    source.catalog.now[8] = PROJECTS
    source.subscriptions.add_waiting()
    assert source.subscriptions.router.shape_ids == {"open", "plain"}


def test_a_shape_waits_for_a_transaction_that_may_be_sent_in_part_for_any_table(source: TwoTableSource) -> None:
    source.catalog.open = frozenset([700])
    source.subscriptions.connect(source.catalog, LSN)
    source.catalog.written = {8: frozenset([700])}
    source.define(OPEN, PLAIN)
    assert source.subscriptions.router.shape_ids == {"plain"}
    source.catalog.open, source.catalog.written = frozenset(), {}
    source.subscriptions.add_waiting()
    assert source.subscriptions.router.shape_ids == {"open", "plain"}
