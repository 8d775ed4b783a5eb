"""Random shapes with subqueries, and random histories of their tables, with SQLite's answer to each shape's query.

SQLite has the same meaning of NULL for IN and NOT IN as PostgreSQL.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Final, Literal

from flushtracker.shape_log.fold import Item, fold
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.item_key import joined_prefix
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.shape_parts import parts_of, queried_tables
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import (
    Change,
    Column,
    Commit,
    Delete,
    Insert,
    Relation,
    Row,
    TransactionFragment,
    Truncate,
    Update,
)
from flushtracker.wal.log_offset import LogOffset

Identity = Literal["default", "full"]

SCHEMA: Final = "main"
"""As SQLite calls it."""
TABLES: Final = ("tasks", "projects", "orgs")
COLUMNS: Final = ("id", "a", "b")
_VALUES: Final = (None, 1, 2, 3)
_IDS: Final = range(1, 6)


def random_condition(rng: Random, depth: int = 0) -> str:
    """A condition on the columns of any table, with subqueries."""
    kind = rng.random()
    if depth < 3 and kind < 0.35:
        parts = [random_condition(rng, depth + 1) for _ in range(rng.choice([2, 2, 3]))]
        joined = f" {rng.choice(['AND', 'OR'])} ".join(parts)
        return f"({joined})" if depth else joined
    if kind < 0.45:
        return f"NOT ({random_condition(rng, depth + 1)})"
    if kind < 0.8 and depth < 4:
        return random_membership(rng, depth)
    column = rng.choice(COLUMNS)
    tests = (f"{column} = {rng.choice(_VALUES[1:])}", f"{column} IS NULL", f"{column} > 1", f"{column} IN (1, NULL)")
    return rng.choice(tests)


def random_membership(rng: Random, depth: int = 0) -> str:
    """``value [NOT] IN (SELECT ...)``."""
    value = rng.choice([*COLUMNS, "(a + 1)", "2"])
    where = f" WHERE {random_condition(rng, depth + 2)}" if rng.random() < 0.7 else ""
    query = f"SELECT {rng.choice(COLUMNS)} FROM {SCHEMA}.{rng.choice(TABLES)}{where}"  # noqa: S608  a test's own
    return f"{value} {rng.choice(['', 'NOT '])}IN ({query})"


def random_definition(rng: Random, shape_id: str) -> ShapeDefinition:
    """A shape with at least one subquery."""
    where = random_membership(rng)
    for _ in range(rng.choice([0, 0, 1, 2])):
        where = f"{where} {rng.choice(['AND', 'OR'])} {random_condition(rng, 1)}"
    columns = rng.choice([None, ("id",), ("id", "b")])
    return ShapeDefinition(shape_id, (SCHEMA, rng.choice(TABLES)), columns=columns, where=where, primary_key=("id",))


@dataclass
class JoinedWorld:
    """The tables, in SQLite and as rows; each step is one transaction as the server would send it."""

    rng: Random
    identities: dict[str, Identity]
    """The replica identity of each table."""
    rows: dict[str, dict[int, dict[str, int | None]]] = field(default_factory=lambda: {name: {} for name in TABLES})
    lsn: int = 1000

    def __post_init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.relations = {}
        for number, name in enumerate(TABLES, 1):
            self.database.execute(f"CREATE TABLE {name} (id integer PRIMARY KEY, a integer, b integer)")
            columns = tuple(Column(column, 23, is_key=column == "id") for column in COLUMNS)
            self.relations[name] = Relation(number, SCHEMA, name, self.identities[name], columns)

    def answer(self, definition: ShapeDefinition) -> list[tuple[str | None, ...]]:
        """The rows of the shape's query, as texts."""
        columns = ", ".join(definition.columns or COLUMNS)
        query = f"SELECT {columns} FROM {'.'.join(definition.table)} WHERE {definition.where}"  # noqa: S608  a test's own
        found = self.database.execute(query).fetchall()
        return sorted([tuple(None if value is None else str(value) for value in row) for row in found], key=repr)

    def transaction(self) -> TransactionFragment:
        """Some changes, also several of one row, or that undo each other."""
        self.lsn += 8
        changes = [self._change(LogOffset(self.lsn, 2 * number)) for number in range(self.rng.choice([1, 1, 2, 3, 5]))]
        commit = Commit("2026-11-21T01:02:03.456789Z", end_lsn=self.lsn + 4)
        return TransactionFragment(
            self.lsn, self.lsn, changes[-1].offset, has_begin=True, commit=commit, changes=tuple(changes)
        )

    def as_sent(self, fragment: TransactionFragment) -> TransactionFragment:
        """The fragment as the server sends it."""
        return fragment

    def router(self, definitions: Iterable[ShapeDefinition]) -> EventRouter:
        """A router of shapes on the tables."""
        return EventRouter(definitions)

    def _change(self, offset: LogOffset) -> Change:
        name = self.rng.choice(TABLES)
        relation, rows = self.relations[name], self.rows[name]
        free = [row_id for row_id in _IDS if row_id not in rows]
        kind = self.rng.random()
        if kind < 0.04:
            return self._truncate(name, offset)
        if not rows or (free and kind < 0.4):
            row = {"id": self.rng.choice(free), "a": self.rng.choice(_VALUES), "b": self.rng.choice(_VALUES)}
            self._put(name, row)
            return Insert(relation, offset, _texts(row))
        old = rows[self.rng.choice(list(rows))]
        self._drop(name, old)
        if kind < 0.55:
            return Delete(relation, offset, self._identity(name, old))
        new = dict(old)
        for column in self.rng.sample(COLUMNS[1:], self.rng.choice([1, 2])):
            new[column] = self.rng.choice(_VALUES)
        if free and self.rng.random() < 0.2:
            new["id"] = self.rng.choice(free)
        self._put(name, new)
        is_sent = self.identities[name] == "full" or new["id"] != old["id"]
        return Update(relation, offset, self._identity(name, old) if is_sent else None, _texts(new))

    def _truncate(self, name: str, offset: LogOffset) -> Change:
        for row in list(self.rows[name].values()):
            self._drop(name, row)
        return Truncate(self.relations[name], offset)

    def statements(self) -> Iterator[str]:
        """What creates the tables on a server."""
        yield f"CREATE SCHEMA {SCHEMA}"
        for name in TABLES:
            yield from self._creation(name)

    def _creation(self, name: str) -> Iterator[str]:
        yield f"CREATE TABLE {SCHEMA}.{name} (id int PRIMARY KEY, a int, b int)"
        yield f"ALTER TABLE {SCHEMA}.{name} REPLICA IDENTITY {self.identities[name]}"

    def _put(self, name: str, row: dict[str, int | None]) -> None:
        self.rows[name][int(row["id"] or 0)] = row
        self.database.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", list(row.values()))  # noqa: S608  a test's own

    def _drop(self, name: str, row: dict[str, int | None]) -> None:
        del self.rows[name][int(row["id"] or 0)]
        self.database.execute(f"DELETE FROM {name} WHERE id = ?", [row["id"]])  # noqa: S608  a test's own

    def _identity(self, name: str, row: dict[str, int | None]) -> Row:
        return _texts(row if self.identities[name] == "full" else {"id": row["id"]})


def _texts(row: dict[str, int | None]) -> Row:
    return {name: None if value is None else str(value) for name, value in row.items()}


def statement(change: Change) -> str:
    """The change as SQL."""
    table = ".".join(change.relation.table)
    match change:
        case Truncate():
            return f"TRUNCATE {table}"
        case Insert():
            values = ", ".join("NULL" if value is None else value for value in change.new.values())
            return f"INSERT INTO {table} VALUES ({values})"  # noqa: S608  a test's own
        case Delete():
            return f"DELETE FROM {table} WHERE id = {change.old['id']}"  # noqa: S608  a test's own
        case Update():
            row_id = (change.old or change.new)["id"]
            values = ", ".join(f"{name} = {'NULL' if value is None else value}" for name, value in change.new.items())
            return f"UPDATE {table} SET {values} WHERE id = {row_id}"  # noqa: S608  a test's own


def random_case(rng: Random, shapes: int = 4) -> tuple[JoinedWorld, list[ShapeDefinition]]:
    """Tables, and shapes on them that their replica identities allow; these are FULL only where a shape needs it."""
    definitions = [completed(random_definition(rng, f"shape {number}")) for number in range(shapes)]
    identities: dict[str, Identity] = dict.fromkeys(TABLES, "default")
    for definition in definitions:
        for part in parts_of(definition):
            world = JoinedWorld(rng, identities)
            if Shape(part).identity_lacks(world.relations[part.table[1]]):
                identities[part.table[1]] = "full"
    return JoinedWorld(rng, identities), definitions


def completed(definition: ShapeDefinition, partitioned: Collection[str] = ()) -> ShapeDefinition:
    """As the catalog would complete it, with tables by name."""
    inner = tuple(
        InnerTable(name, 1 + TABLES.index(name[1]), ("id",), name[1] in partitioned)
        for name in queried_tables(definition)
    )
    return replace(definition, inner_tables=inner, keys_have_partitions=definition.table[1] in partitioned)


_parsed = cache(parse_where)


def folded(definition: ShapeDefinition, world: JoinedWorld, items: Sequence[Item]) -> list[tuple[str | None, ...]]:
    """The rows of a shape by its log, as texts."""
    relations = {relation.table: relation for relation in world.relations.values()}
    condition = _parsed(definition.where or "").joined(definition.table, relations)
    rows = fold(items)
    for name in condition.inner_tables:
        for key, row in rows.items():
            if key.startswith(f"{joined_prefix(name)}/"):
                condition.add(name, row)
    condition.settle()
    own = [row for key, row in rows.items() if key.startswith(f"{joined_prefix(definition.table)}/")]
    names = definition.columns or COLUMNS
    return sorted([tuple(row[name] for name in names) for row in own if condition.matches(row)], key=repr)
