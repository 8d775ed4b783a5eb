"""Composes the statements that give a table without a key one, without a rule that its applications could break.

A key over the columns that are there would refuse rows that the application may write. So the statements add a column
that fills itself. It comes last: an INSERT without column names goes on to work.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.identity_remedies import IDENTITY_INDEX
from flushtracker.postgres.inheritance import BELOW
from flushtracker.shapes.item_key import quoted, sql_table
from flushtracker.wal.changes import TableName

_TABLES: Final = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind = 'p', c.reloftype = 0, c.relreplident = 'n',
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
  ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
"""
# A key of a partitioned table has the columns by which it and its partitions are divided; as a part of it they are NOT
# NULL. Rows with NULL there exist only in a default partition or in one of a list.
_DIVIDED_BY: Final = f"""
WITH RECURSIVE {BELOW}
SELECT b.root::bigint, a.attname::text,
  a.attname IS NOT NULL AND (a.attnotnull OR p.partstrat = 'r' AND p.partdefid = 0)
FROM below b JOIN pg_partitioned_table p ON p.partrelid = b.relid
CROSS JOIN LATERAL unnest(p.partattrs::int[]) WITH ORDINALITY AS k(attnum, ordinal)
LEFT JOIN pg_attribute a ON a.attrelid = b.relid AND a.attnum = k.attnum AND k.attnum > 0
ORDER BY b.root, b.relid <> b.root, b.relid, k.ordinal
"""  # noqa: S608  a constant
ADDED_COLUMN: Final = (
    "the new column comes last; adding it rewrites the table, which is locked meanwhile, and a COPY without column "
    "names has to name them from then on"
)


@dataclass(frozen=True, slots=True)
class _Keyless:
    oid: int
    table: TableName
    is_partitioned: bool
    may_get_columns: bool
    has_no_identity: bool
    has_primary_key: bool
    columns: frozenset[str]
    divided_by: tuple[tuple[str | None, bool], ...] = ()
    """The columns by which rows are divided among partitions, and whether each may become NOT NULL."""

    def statements(self) -> Iterator[str]:
        name, column = sql_table(self.table), quoted(self._new_column())
        if not self.may_get_columns:
            return
        if self.is_partitioned:
            if not self.has_primary_key and all(may_be_filled for _, may_be_filled in self.divided_by):
                key = dict.fromkeys(quoted(each) for each, _ in self.divided_by if each is not None)
                listed = ", ".join([*key, column])
                default = "uuid NOT NULL DEFAULT gen_random_uuid()"
                yield f"ALTER TABLE {name} ADD COLUMN {column} {default}, ADD PRIMARY KEY ({listed})"
            return
        identity = f"ALTER TABLE {name} ADD COLUMN {column} bigint GENERATED ALWAYS AS IDENTITY"
        if not self.has_primary_key:
            yield f"{identity} PRIMARY KEY"
            if self.has_no_identity:
                yield f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT"
            return
        # There is one that is DEFERRABLE, on which the application may rely.
        yield f"{identity} CONSTRAINT {IDENTITY_INDEX}{self.oid} UNIQUE"
        yield f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {IDENTITY_INDEX}{self.oid}"

    def _new_column(self) -> str:
        names = ("id" if number == 0 else f"row_id{number if number > 1 else ''}" for number in count())
        return next(name for name in names if name not in self.columns)


def key_remedies(connection: Connection, oids: Collection[int]) -> dict[int, tuple[str, ...]]:
    """For each of these tables, which have no key, the statements that add one; empty if no statement certainly works.

    The statements of a partitioned table are for that table, not for its partitions.
    """
    if not oids:
        return {}
    divided: dict[int, list[tuple[str | None, bool]]] = {oid: [] for oid in oids}
    for oid, column, may_be_filled in rows(connection, _DIVIDED_BY, {"oids": list(oids)}):
        divided[oid].append((column, bool(may_be_filled)))
    found = {}
    for oid, schema, name, *others in rows(connection, _TABLES, (list(oids),)):
        is_partitioned, may_get_columns, has_no_identity, has_primary_key, columns = others
        facts = is_partitioned, may_get_columns, has_no_identity, has_primary_key
        keyless = _Keyless(oid, (schema, name), *facts, frozenset(columns), tuple(divided[oid]))
        found[oid] = tuple(keyless.statements())
    return found
