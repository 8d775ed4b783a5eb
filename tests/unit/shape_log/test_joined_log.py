"""The shape log of a shape with subqueries: its rows at every commit, before and after upkeep, and what refuses it."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from flushtracker.cli import main
from flushtracker.errors import ConfigError, PositionError
from flushtracker.events.registry_events import ShapeEntry, TableEntry, parse_registry_entry
from flushtracker.shape_log.table.reader import read_shape, read_shape_log
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.wal.log_offset import LogOffset
from tests.support.folded_log import folded
from tests.support.joined_history import SCHEMA, TABLES, JoinedWorld, random_case
from tests.support.joined_log import TRANSACTIONS, entries, joined_shape, played, rows_at
from tests.support.joined_partitions import partitioned_case
from tests.support.key_bindings import ID_KEY
from tests.support.sample_registry import register
from tests.support.shape_log_rows import SOURCE, append, commit, item
from tests.support.snapshot_world import Table, apply

_SAMPLE: Final = 6


@pytest.mark.parametrize("case", [random_case, partitioned_case])
def test_a_reader_has_the_query_of_every_commit_also_after_a_fold(
    log: str, case: Callable[[Random, int], tuple[JoinedWorld, list[ShapeDefinition]]]
) -> None:
    """The fold keeps the rows of all tables and partitions, by key."""
    world, definitions = case(Random(1), 2)  # noqa: S311  reproducible
    answers = played(log, world, definitions)
    register(log, *entries(definitions))

    def compare(since: int) -> int:
        count = 0
        for definition in definitions:
            bound = read_shape(log, definition.id).bound
            assert bound is not None
            told = [(tx, expected) for tx, expected in answers if since < tx <= bound.tx_offset]
            for tx, expected in Random(since).sample(told, min(_SAMPLE, len(told))):  # noqa: S311  reproducible
                assert rows_at(log, definition.id, tx) == expected[definition.id], f"{definition} at {tx}"
                count += 1
            assert rows_at(log, definition.id) == answers[-1][1][definition.id]
        return count

    assert compare(0) > _SAMPLE
    middle = answers[TRANSACTIONS // 2][0]
    assert folded(log, 0, middle + 1) == len(definitions)
    assert compare(middle)


def test_columns_that_only_conditions_need_are_not_among_the_rows(log: str) -> None:
    """Typed rows have the types of the shape's table."""
    where = "a IN (SELECT id FROM main.projects)"
    definition = ShapeDefinition(
        *("shape", (SCHEMA, "tasks")), columns=("b",), where=where, primary_key=("id",),
        inner_tables=(InnerTable((SCHEMA, "projects"), 2, ("id",)),),
    )  # fmt: skip
    tasks, projects = '"main"."tasks"/*/"1"', '"main"."projects"/*/"5"'
    row: dict[str, str | None] = {"id": "1", "a": "5", "b": "8"}
    append(log, [item((16, 0), "insert", tasks, row, shape_id="shape"), commit(16, shape_id="shape")])
    append(log, [item((24, 0), "insert", projects, {"id": "5"}, shape_id="shape"), commit(24, shape_id="shape")])
    with pytest.raises(ConfigError, match="has subqueries, and its log has rows of all tables that they read"):
        read_shape(log, "shape")
    known = entries([definition])
    register(log, *known)
    assert read_shape(log, "shape", typed=True).rows.to_pylist() == [{"id": 1, "b": 8}]
    assert read_shape(log, "shape", LogOffset.last_of(16)).rows.to_pylist() == []
    assert read_shape_log(log, "shape").rows["key"].to_pylist() == [tasks, None, projects, None]


def test_a_shape_whose_inner_table_the_registry_lacks_cannot_be_read(log: str) -> None:
    definition = ShapeDefinition(
        *("shape", (SCHEMA, "tasks")), where="a IN (SELECT id FROM main.projects)", primary_key=("id",),
        inner_tables=(InnerTable((SCHEMA, "projects"), 2, ("id",)),),
    )  # fmt: skip
    append(log, [item((16, 0), "insert", '"main"."tasks"/*/"1"', {"id": "1", "a": "5"}, shape_id="shape")])
    append(log, [commit(16, shape_id="shape")])
    known = entries([definition])
    register(log, *(each for each in known if not isinstance(each, TableEntry) or each.binding.oid == 1))
    with pytest.raises(ConfigError, match="has subqueries"):
        read_shape(log, "shape")


def test_the_entry_of_a_shape_with_subqueries_has_its_inner_tables() -> None:
    """It is read as it was written; other entries have no such key."""
    inner = (InnerTable((SCHEMA, "projects"), 2, ("id",)),)
    where = "a IN (SELECT id FROM main.projects)"
    definition = ShapeDefinition("shape", (SCHEMA, "tasks"), where=where, snapshot=True)
    entry = ShapeEntry(SOURCE, definition, 1, LogOffset(9, 0))
    joined = replace(entry, definition=replace(entry.definition, inner_tables=inner))
    assert parse_registry_entry(joined.to_json()) == joined
    assert joined.table_oids == (1, 2)
    assert "inner_tables" not in entry.to_json()
    assert entry.table_oids == (1,)


def test_labels_that_only_one_of_two_tables_is_bound_with_are_the_same_in_both(log: str) -> None:
    """A label was added since the other one was bound; values are compared by the labels of both."""

    def table(oid: int, name: str, *labels: str) -> TableEntry:
        mood = TypeBinding(
            16_400, "main", "mood", "enum", labels=tuple(EnumLabel(n, text, 9) for n, text in enumerate(labels, 1))
        )
        columns = (ColumnBinding(1, "id", 23, -1, 0), ColumnBinding(2, "mood", 16_400, -1, 0))
        return TableEntry(SOURCE, TableBinding(oid, (SCHEMA, name), ID_KEY, columns, types=(mood,)))

    definition = ShapeDefinition(
        *("shape", (SCHEMA, "tasks")), where="mood IN (SELECT mood FROM main.projects)", primary_key=("id",),
        inner_tables=(InnerTable((SCHEMA, "projects"), 2, ("id",)),),
    )  # fmt: skip
    for tx, name, row_id, mood in ((16, "tasks", "1", "b"), (24, "projects", "5", "b"), (32, "projects", "6", "new")):
        row: dict[str, str | None] = {"id": row_id, "mood": mood}
        key = f'"main"."{name}"/*/"{row_id}"'
        append(log, [item((tx, 0), "insert", key, row, shape_id="shape"), commit(tx, shape_id="shape")])
    entry = ShapeEntry(SOURCE, definition, 1, LogOffset(9, 0))
    register(log, table(1, "tasks", "new", "a", "b"), table(2, "projects", "a", "b"), entry)
    assert read_shape(log, "shape").rows.to_pylist() == [{"id": "1", "mood": "b"}]


def test_rows_have_no_position_from_which_the_log_would_continue(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A follower of the log begins with it, and has the rows of all tables."""
    shape = joined_shape("IN")
    world = JoinedWorld(Random(5), dict.fromkeys(TABLES, "full"))  # noqa: S311  reproducible
    ((_, answers),) = played(log, world, [shape], 20)[-1:]
    register(log, *entries([shape]))
    with pytest.raises(PositionError, match="has subqueries, so its rows cannot be followed"):
        _ = read_shape(log, shape.id).position
    assert main(["read", shape.id, "--log", log]) == 0
    assert "position" not in capsys.readouterr().err
    position = read_shape_log(log, shape.id).position
    ((_, after),) = played(log, world, [shape], 4)[-1:]
    assert read_shape_log(log, shape.id, position).rows.num_rows
    assert rows_at(log, shape.id) == after[shape.id] != answers[shape.id]


def test_a_removed_shape_of_which_little_is_kept_is_not_read_as_if_it_were_one_table(log: str) -> None:
    """Its condensed entry has neither its condition nor its tables."""
    append(log, [item((16, 0), "insert", '"main"."tasks"/*/"1"', {"id": "1"}, shape_id="shape")])
    append(log, [commit(16, shape_id="shape")])
    entry = ShapeEntry(SOURCE, ShapeDefinition("shape", (SCHEMA, "tasks")), 1, LogOffset(9, 0), LogOffset(30, 0))
    register(log, entry.condensed())
    with pytest.raises(ConfigError, match="has subqueries"):
        read_shape(log, "shape", even_if_ended=True)


def test_an_ended_shape_whose_tables_have_changed_says_so(log: str) -> None:
    definition = ShapeDefinition(
        *("shape", (SCHEMA, "tasks")), where="a IN (SELECT gone FROM main.projects)", primary_key=("id",),
        inner_tables=(InnerTable((SCHEMA, "projects"), 2, ("id",)),),
    )  # fmt: skip
    append(log, [item((16, 0), "insert", '"main"."tasks"/*/"1"', {"id": "1", "a": "1"}, shape_id="shape")])
    append(log, [commit(16, shape_id="shape")])
    register(log, *entries([definition]))
    with pytest.raises(ConfigError, match="cannot be read, as its tables have changed since it ended"):
        read_shape(log, "shape")


def test_followers_of_a_log_drop_the_rows_of_the_one_table_that_is_truncated() -> None:
    """The soaks' follower took this for a change of a row that it does not have."""
    rows: Table = {'"a"."b"/*/"1"': {"id": "1"}, '"a"."c"/*/"1"': {"id": "1"}}
    apply(rows, "truncate_partition", '"a"."b"/*', None)
    assert [*rows] == ['"a"."c"/*/"1"']
