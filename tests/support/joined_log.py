"""A shape log of shapes with subqueries, played at random, with what each must have."""

from collections.abc import Collection
from typing import Final

from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.shape_log.table.reader import read_shape
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.folded_log import dated
from tests.support.joined_history import COLUMNS, SCHEMA, TABLES, JoinedWorld, completed
from tests.support.key_bindings import ID_KEY
from tests.support.shape_log_rows import SOURCE, append, commit, item

TRANSACTIONS: Final = 20
Answer = list[tuple[str | None, ...]]


def entries(definitions: list[ShapeDefinition]) -> list[ShapeEntry | TableEntry]:
    """The registry entries of the shapes and of all tables, as capture publishes them."""
    columns = tuple(ColumnBinding(number, name, 23, -1, 0) for number, name in enumerate(COLUMNS, 1))
    tables = [TableEntry(SOURCE, TableBinding(n, (SCHEMA, name), ID_KEY, columns)) for n, name in enumerate(TABLES, 1)]
    shapes = [ShapeEntry(SOURCE, each, 1 + TABLES.index(each.table[1]), LogOffset(9, 0)) for each in definitions]
    return [*tables, *shapes]


JOINED_TABLES: Final = {"users": '"main"."tasks"', "offices": '"main"."projects"'}
"""The tables of :func:`joined_shape`, by their names in docs/shape_log.md."""


def joined_shape(membership: str, partitioned: Collection[str] = ()) -> ShapeDefinition:
    """A shape with a subquery like that of docs/shape_log.md."""
    where = f"a {membership} (SELECT a FROM main.projects WHERE id > 3)"  # noqa: S608  a test's own
    shape = ShapeDefinition("shape", (SCHEMA, "tasks"), columns=("id", "a"), primary_key=("id",), where=where)
    return completed(shape, partitioned)


def row_of(shape_id: str, each: LogItem) -> dict[str, object]:
    value = None if each.value is None else dict(each.value)
    return item((each.offset.tx_offset, each.offset.op_offset), each.operation, each.key, value, shape_id=shape_id)


def rows_of(part: RoutedFragment) -> list[dict[str, object]]:
    """What a shape's log gets of a transaction."""
    rows = [row_of(part.shape_id, each) for each in part.items]
    return [*rows, commit(part.lsn, shape_id=part.shape_id)]


def played(
    log: str, world: JoinedWorld, definitions: list[ShapeDefinition], count: int = TRANSACTIONS
) -> list[tuple[int, dict[str, Answer]]]:
    """Append random transactions; each with the answers after it."""
    router, answers = world.router(definitions), []
    for _ in range(count):
        rows = [row for part in router.route(world.as_sent(world.transaction())) for row in rows_of(part)]
        if rows:
            append(log, dated(rows))
        answers.append((world.lsn, {each.id: world.answer(each) for each in definitions}))
    return answers


def rows_at(log: str, shape_id: str, tx: int | None = None) -> Answer:
    found = read_shape(log, shape_id, None if tx is None else LogOffset.last_of(tx)).rows.to_pylist()
    return sorted([tuple(row.values()) for row in found], key=repr)
