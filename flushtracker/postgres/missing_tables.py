"""Explains why names are not those of tables: they name other objects, or none, and then perhaps have a typo."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from flushtracker.errors import did_you_mean
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.raw_names import RAW, raw_name
from flushtracker.shapes.shapes_file import typed_table
from flushtracker.wal.changes import TableName

NO_TABLES: Final = {
    "v": "a view; name the table that it reads",
    "m": "a materialized view; name the table that it reads",
    "f": "a foreign table, whose changes are not in this server's WAL",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
}
"""What is no table, by its kind in the catalog."""
_OBJECTS: Final = """
SELECT w.schema, w.name, c.relkind FROM unnest(%s::text[], %s::text[]) AS w(schema, name)
JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
"""
# Names that may have been meant, few for each.
_NEAR: Final = f"""
SELECT w.schema, w.name, {RAW.format("o.nspname")}, {RAW.format("o.relname")}
FROM unnest(%s::text[], %s::text[]) AS w(schema, name)
CROSS JOIN LATERAL (
  SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p') AND n.nspname <> 'information_schema' AND NOT starts_with(n.nspname::text, 'pg_')
  ORDER BY c.relname = w.name DESC, n.nspname = w.schema DESC, abs(length(c.relname) - length(w.name)), n.nspname,
    c.relname
  LIMIT 200
) o
"""  # noqa: S608  a constant
_MOST_HINTS: Final = 20
"""For each of them the server scans all its tables, and there may be as many wrong names as tables."""


def read_missing_tables(connection: Connection, names: Iterable[TableName]) -> dict[TableName, str]:
    """For each name without a table, what there is instead, worded for an error."""
    wanted = sorted(set(names))
    kinds = {(schema, name): kind for schema, name, kind in rows(connection, _OBJECTS, _columns(wanted))}
    unknown = [each for each in wanted if kinds.get(each) not in NO_TABLES]
    near: dict[TableName, list[TableName]] = defaultdict(list)
    for schema, name, *other in rows(connection, _NEAR, _columns(unknown[:_MOST_HINTS])):
        near_schema, near_name = (raw_name(connection, raw) for raw in other)
        if near_schema is not None and near_name is not None:
            near[schema, name].append((near_schema, near_name))
    return {each: _reason(each, kinds.get(each), near[each]) for each in wanted}


def _columns(names: Sequence[TableName]) -> tuple[list[str], list[str]]:
    return [schema for schema, _ in names], [name for _, name in names]


def _reason(table: TableName, kind: str | None, near: Iterable[TableName]) -> str:
    dotted = ".".join(table)
    if kind is not None and kind in NO_TABLES:
        return f"{dotted} is {NO_TABLES[kind]}"
    typed = {".".join(other): typed_table(other) for other in near}
    return f"there is no table {dotted} in this database{did_you_mean(dotted, typed, typed.__getitem__)}"
