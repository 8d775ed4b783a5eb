"""Shapes with subqueries: routed, folded, and compared with SQLite's answer to their queries at every commit."""

import json
import os
import pickle
from collections.abc import Callable
from random import Random
from typing import Final

import pytest
from pyspark import cloudpickle

from flushtracker.errors import ShapeError
from flushtracker.shape_log.fold import Item
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.shape_parts import has_subqueries, parts_of, queried_tables, tables_of
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Change, Commit, Delete, Insert, Row, TransactionFragment, Truncate, Update
from flushtracker.wal.log_offset import LogOffset
from tests.support.joined_history import SCHEMA, TABLES, JoinedWorld, completed, folded, random_case
from tests.support.joined_partitions import PartitionedWorld, partitioned_case

_HISTORIES: Final = int(os.environ.get("FLUSHTRACKER_JOINED_HISTORIES", "40"))
_TRANSACTIONS: Final = 25
TASKS: Final = (SCHEMA, "tasks")
PROJECTS: Final = (SCHEMA, "projects")
IN_PROJECT: Final = "a IN (SELECT id FROM main.projects WHERE a = 7)"
"""Tasks name their project in the column a, and projects their organisation."""
NOT_IN_PROJECT: Final = "a NOT IN (SELECT b FROM main.projects)"


def items_of(part: RoutedFragment) -> list[Item]:
    """The items of a routed part, as a log has them."""
    return [(each.operation, each.key, None if each.value is None else json.dumps(each.value)) for each in part.items]


class Log:
    """One shape, to which transactions are routed; its tables have the replica identity FULL."""

    def __init__(self, where: str) -> None:
        definition = ShapeDefinition("shape", TASKS, where=where, primary_key=("id",))
        self.definition = completed(definition)
        self.world = JoinedWorld(Random(0), dict.fromkeys(("tasks", "projects", "orgs"), "full"))  # noqa: S311
        self.router = EventRouter([self.definition])
        self.items: list[Item] = []
        self.lsn = 1000

    def commit(self, *changes: tuple[str, Row | None, Row | None]) -> set[str | None]:
        """One transaction of changes, each a table with its old and its new row; the ids that the shape has then."""
        self.lsn += 8
        made = tuple(self._change(LogOffset(self.lsn, 2 * n), *change) for n, change in enumerate(changes))
        commit = Commit("2026-11-21T01:02:03.456789Z", end_lsn=self.lsn + 4)
        fragment = TransactionFragment(self.lsn, self.lsn, made[-1].offset, has_begin=True, commit=commit, changes=made)
        for part in self.router.route(fragment):
            self.items += items_of(part)
        return {row[0] for row in folded(self.definition, self.world, self.items)}

    def _change(self, offset: LogOffset, table: str, old: Row | None, new: Row | None) -> Change:
        relation = self.world.relations[table]
        if old is None and new is None:
            return Truncate(relation, offset)
        if old is None:
            return Insert(relation, offset, new or {})
        return Delete(relation, offset, old) if new is None else Update(relation, offset, old, new)


def row(row_id: int, a: int | None, b: int | None = None) -> Row:
    return {name: None if value is None else str(value) for name, value in (("id", row_id), ("a", a), ("b", b))}


@pytest.mark.parametrize("case", [random_case, partitioned_case])
@pytest.mark.parametrize("first", range(0, _HISTORIES, 10))
def test_random_shapes_equal_their_queries_at_every_commit(
    first: int, case: Callable[[Random], tuple[JoinedWorld, list[ShapeDefinition]]]
) -> None:
    """Nested subqueries, NOT IN, NULLs, one table in several roles; inserts, updates, key changes, TRUNCATE.

    On partitioned tables rows move between partitions, and single ones are truncated, too.
    """
    for seed in range(first, first + 10):
        world, definitions = case(Random(seed))  # noqa: S311  reproducible
        router = world.router(definitions)
        logs: dict[str, list[Item]] = {definition.id: [] for definition in definitions}
        for number in range(_TRANSACTIONS):
            for part in router.route(world.as_sent(world.transaction())):
                logs[part.shape_id] += items_of(part)
                offsets = [each.offset for each in part.items]
                assert offsets == sorted(set(offsets))
            router.check_invariants()
            for definition in definitions:
                found = folded(definition, world, logs[definition.id])
                assert found == world.answer(definition), f"seed {seed}, transaction {number}: {definition}"


def test_a_partition_that_is_attached_to_another_table_of_the_shape_ends_it() -> None:
    """A row of it would be in the log twice, at one offset. A shape that reads only one of the tables goes on."""
    world = PartitionedWorld(Random(0), dict.fromkeys(TABLES, "default"), partitioned=frozenset({"projects"}))  # noqa: S311
    both = completed(ShapeDefinition("both", TASKS, where="a IN (SELECT id FROM main.projects)"), {"projects"})
    alone = completed(ShapeDefinition("alone", TASKS, where="a IN (SELECT id FROM main.orgs)"))
    router = world.router([both, alone])
    tasks = world.relations["tasks"]

    def insert(lsn: int) -> TransactionFragment:
        change = Insert(tasks, LogOffset(lsn, 0), row(lsn, 1))
        commit = Commit("2026-11-21T01:02:03.456789Z", end_lsn=lsn + 4)
        return TransactionFragment(lsn, lsn, change.offset, has_begin=True, commit=commit, changes=(change,))

    assert [part.shape_id for part in router.route(insert(1000))] == ["alone", "both"]
    router.partitions.add(world.relations["projects"].relation_id, tasks.relation_id, 1008)
    with pytest.raises(ShapeError, match=r"main\.tasks was attached to table main\.projects") as raised:
        router.route(insert(1008))
    assert [*raised.value.shape_errors] == ["both"]
    router.remove_shape("both")
    assert [part.shape_id for part in router.route(insert(1008))] == ["alone"]


def test_an_inner_and_an_outer_row_of_one_transaction() -> None:
    """In whichever order they come."""
    log = Log(IN_PROJECT)
    assert log.commit(("tasks", None, row(1, 10)), ("projects", None, row(10, 7))) == {"1"}
    assert log.commit(("projects", None, row(11, 7)), ("tasks", None, row(2, 11))) == {"1", "2"}
    assert log.commit(("projects", row(10, 7), None), ("tasks", row(1, 10), row(1, 11))) == {"1", "2"}


def test_a_value_that_two_inner_rows_give_stays_when_one_of_them_goes() -> None:
    log = Log("a IN (SELECT b FROM main.projects WHERE a = 7)")
    log.commit(("projects", None, row(10, 7, 3)), ("projects", None, row(11, 7, 3)))
    assert log.commit(("tasks", None, row(1, 3))) == {"1"}
    assert log.commit(("projects", row(10, 7, 3), None)) == {"1"}
    assert log.commit(("projects", row(11, 7, 3), row(11, 8, 3))) == set()


def test_an_inner_row_that_leaves_and_returns_within_a_transaction() -> None:
    log = Log(IN_PROJECT)
    log.commit(("projects", None, row(10, 7)), ("tasks", None, row(1, 10)))
    assert log.commit(("projects", row(10, 7), row(10, 8)), ("projects", row(10, 8), row(10, 7))) == {"1"}
    assert log.commit(("projects", row(10, 7), None), ("projects", None, row(10, 7))) == {"1"}
    assert log.commit(("projects", row(10, 7), row(12, 7)), ("projects", row(12, 7), row(10, 7))) == {"1"}


def test_not_in_an_empty_subquery_is_true_even_for_null() -> None:
    """And IN is false."""
    log = Log(NOT_IN_PROJECT)
    assert log.commit(("tasks", None, row(1, 3)), ("tasks", None, row(2, None))) == {"1", "2"}
    assert log.commit(("projects", None, row(10, 7, 4))) == {"1"}
    assert log.commit(("projects", row(10, 7, 4), None)) == {"1", "2"}


def test_not_in_a_subquery_with_a_null_is_never_true() -> None:
    """And IN is true only for a value that is there."""
    log = Log(NOT_IN_PROJECT)
    assert log.commit(("tasks", None, row(1, 3)), ("projects", None, row(10, 7, None))) == set()
    assert log.commit(("projects", row(10, 7, None), row(10, 7, 4))) == {"1"}
    assert Log("a IN (SELECT b FROM main.projects)").commit(
        ("tasks", None, row(1, 3)), ("tasks", None, row(2, 4)), ("projects", None, row(10, 7)),
        ("projects", None, row(11, 7, 3)),
    ) == {"1"}  # fmt: skip


def test_a_table_that_its_own_subquery_reads() -> None:
    """Each of its rows is in the log once, whatever roles it has."""
    log = Log("id IN (SELECT a FROM main.tasks)")
    assert log.commit(("tasks", None, row(1, None)), ("tasks", None, row(2, 1))) == {"1"}
    assert len(log.items) == 2
    assert log.commit(("tasks", row(2, 1), row(2, 2))) == {"2"}
    assert log.commit(("tasks", row(2, 2), row(3, 1))) == {"1"}


def test_an_outer_row_that_moves_to_a_value_that_enters_at_once() -> None:
    log = Log(IN_PROJECT)
    log.commit(("projects", None, row(10, 7)), ("projects", None, row(11, 8)), ("tasks", None, row(1, 10)))
    moves = (("tasks", row(1, 10), row(1, 11)), ("projects", row(11, 8), row(11, 7)), ("projects", row(10, 7), None))
    assert log.commit(*moves) == {"1"}


@pytest.mark.parametrize("membership", ["IN", "NOT IN"])
@pytest.mark.parametrize("values", [[], ["3"], [None], ["3", None]])
def test_a_condition_in_another_process_is_the_same(membership: str, values: list[str | None]) -> None:
    """Spark's executors get a copy by pickle, in which what a subquery has at all was lost."""
    log = Log(f"a {membership} (SELECT b FROM main.projects)")  # noqa: S608  a test's own
    condition = parse_where(log.definition.where or "").joined(
        TASKS, {each.table: each for each in log.world.relations.values()}
    )
    for value in values:
        condition.add(PROJECTS, {"b": value})
    condition.settle()
    copy = pickle.loads(cloudpickle.dumps(condition))  # type: ignore[no-untyped-call]  # noqa: S301  its own
    for value in ("3", "4", None):
        assert copy.matches({"a": value}) == condition.matches({"a": value}), value


def test_a_truncate_empties_its_own_table_alone() -> None:
    log = Log(IN_PROJECT)
    log.commit(("projects", None, row(10, 7)), ("tasks", None, row(1, 10)))
    assert log.commit(("projects", None, None)) == set()
    assert log.commit(("projects", None, row(10, 7))) == {"1"}
    assert log.commit(("tasks", None, None)) == set()
    assert log.commit(("tasks", None, row(2, 10))) == {"2"}


def test_a_column_that_only_a_subquery_compares_need_not_be_in_old_rows() -> None:
    """With REPLICA IDENTITY DEFAULT an update of it has no old row, and the shape gets it nevertheless."""
    world = JoinedWorld(Random(0), dict.fromkeys(("tasks", "projects", "orgs"), "default"))  # noqa: S311
    definition = ShapeDefinition("shape", TASKS, where="a IN (SELECT id FROM main.projects)")
    own, inner = parts_of(definition)
    assert not Shape(own).identity_lacks(world.relations["tasks"])
    assert not Shape(inner).identity_lacks(world.relations["projects"])
    selective = parts_of(ShapeDefinition("shape", TASKS, where=IN_PROJECT))[1]
    (lack,) = Shape(selective).identity_lacks(world.relations["projects"])
    assert lack.identity == ("id",)


def test_parts_have_the_columns_and_the_rows_that_they_need() -> None:
    """The log of each table has no other columns, and no rows that its conditions exclude."""
    where = "b > 1 AND (a IN (SELECT id FROM main.projects WHERE a = 7) OR NOT b IN (SELECT b FROM main.orgs))"
    definition = ShapeDefinition("shape", TASKS, columns=("id",), where=where, primary_key=("id",))
    own, projects, orgs = parts_of(definition)
    assert (own.table, own.columns, own.where) == (TASKS, ("a", "b", "id"), "b > 1 AND (TRUE OR NOT FALSE)")
    assert (projects.table, projects.columns, projects.where) == (PROJECTS, ("a", "id"), " a = 7")
    assert (orgs.columns, orgs.where) == (("b",), None)
    assert tables_of(definition) == (TASKS, PROJECTS, (SCHEMA, "orgs"))


def test_a_table_in_several_roles_is_one_part() -> None:
    """With the rows and the columns of all of them."""
    where = "a IN (SELECT id FROM main.projects WHERE a = 7) AND b NOT IN (SELECT b FROM main.projects WHERE a = 8)"
    _, projects = parts_of(ShapeDefinition("shape", TASKS, where=where))
    assert projects.columns == ("a", "b", "id")
    assert projects.where == "( a = 7\n) OR ( a = 8\n)"
    itself = ShapeDefinition("shape", TASKS, where="a IN (SELECT id FROM main.tasks WHERE b = 1) AND b = 2")
    (only,) = parts_of(itself)
    assert (only.columns, only.where) == (None, "(TRUE AND b = 2\n) OR ( b = 1\n)")
    assert has_subqueries(itself)
    assert queried_tables(itself) == (TASKS,)


def test_a_shape_without_subqueries_is_its_only_part() -> None:
    """Also if its condition has the word."""
    for where in (None, "a = 1", "a = 'select'"):
        definition = ShapeDefinition("shape", TASKS, where=where)
        assert parts_of(definition) == (definition,)
        assert not has_subqueries(definition)
        assert queried_tables(definition) == ()


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("a IN (SELECT id FROM projects)", "without its schema"),
        ("a IN (SELECT id, a FROM main.projects)", "anything but one column"),
        ("a IN (SELECT * FROM main.projects)", "anything but one column"),
        ("a IN (SELECT id + 1 FROM main.projects)", "anything but one column"),
        ("a IN (SELECT max(id) FROM main.projects)", "max(...)"),
        ("a IN (SELECT DISTINCT id FROM main.projects)", "DISTINCT"),
        ("a IN (SELECT id FROM main.projects LIMIT 1)", "LIMIT"),
        ("a IN (SELECT id FROM main.projects ORDER BY id)", "ORDER"),
        ("a IN (SELECT id FROM main.projects GROUP BY id)", "GROUP"),
        ("a IN (SELECT id FROM main.projects, main.orgs)", "a subquery with ,"),
        ("a IN (SELECT id FROM main.projects UNION SELECT id FROM main.orgs)", "a subquery with UNION"),
        ("a IN (SELECT id FROM main.projects p)", "a subquery with P"),
        ("a IN (SELECT id FROM ONLY main.projects)", "ONLY"),
        ("a IN (SELECT id FROM main.projects WHERE projects.a = tasks.a)", "qualified by a table"),
        ("EXISTS (SELECT id FROM main.projects)", "EXISTS"),
        ("a = (SELECT id FROM main.projects)", "a subquery other than with IN"),
        ("a = ANY (SELECT id FROM main.projects)", "a subquery other than with IN"),
        ("(a IN (SELECT id FROM main.projects)) IS NOT TRUE", "inside another test"),
        ("(a IN (SELECT id FROM main.projects)) = (b = 1)", "inside another test"),
        ("NOT a = 1 IN (SELECT id FROM main.projects)", "inside another test"),
        ("(a, b) IN (SELECT id, a FROM main.projects)", "a row of several values"),
    ],
)
def test_other_subqueries_are_refused_with_what_to_write(where: str, reason: str) -> None:
    with pytest.raises(ShapeError) as raised:
        parts_of(ShapeDefinition("shape", TASKS, where=where))
    assert reason in str(raised.value)
