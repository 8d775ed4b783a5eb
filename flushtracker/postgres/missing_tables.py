"""Why names are not those of tables: each is another object's, or none's, and then perhaps a mistyped one."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from flushtracker.errors import did_you_mean
from flushtracker.postgres.connection import Connection, rows
from flushtracker.wal.changes import TableName

_KINDS: Final = {
    "v": "a view; name the table that it reads",
    "m": "a materialized view; name the table that it reads",
    "f": "a foreign table, whose changes are not in this server's WAL",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
}
# The object of the name itself first, then names that may have been meant, few for each.
_NEAR: Final = """
SELECT w.schema, w.name, o.nspname, o.relname, o.relkind
FROM unnest(%s::text[], %s::text[]) AS w(schema, name)
CROSS JOIN LATERAL (
  SELECT n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE (n.nspname = w.schema AND c.relname = w.name) OR (
    c.relkind IN ('r', 'p') AND n.nspname <> 'information_schema' AND NOT starts_with(n.nspname::text, 'pg_')
  )
  ORDER BY n.nspname = w.schema AND c.relname = w.name DESC, c.relname = w.name DESC, n.nspname = w.schema DESC,
    abs(length(c.relname) - length(w.name)), n.nspname, c.relname
  LIMIT 200
) o
"""


def read_missing_tables(connection: Connection, names: Iterable[TableName]) -> dict[TableName, str]:
    """For each name of which there is no table, what there is instead, as an error says it."""
    wanted = sorted(set(names))
    near: dict[TableName, list[str]] = defaultdict(list)
    kinds: dict[TableName, str] = {}
    columns = [[name[part] for name in wanted] for part in (0, 1)]
    for schema, name, near_schema, near_name, kind in rows(connection, _NEAR, columns):
        if (schema, name) == (near_schema, near_name):
            kinds[schema, name] = kind
        else:
            near[schema, name].append(f"{near_schema}.{near_name}")
    return {each: _reason(each, kinds.get(each), near[each]) for each in wanted}


def _reason(table: TableName, kind: str | None, near: Iterable[str]) -> str:
    dotted = ".".join(table)
    if kind is not None and kind in _KINDS:
        return f"{dotted} is {_KINDS[kind]}"
    return f"there is no table {dotted} in this database{did_you_mean(dotted, near)}"
