"""Random ``pgoutput`` messages of a few tables, and random shapes on them: what a narrow reader may get wrong.

Rows have NULLs, empty texts, unchanged TOAST values, text that is not UTF-8, and every kind of old row. Keys change,
and tables are described again with their columns in another order. Ids are few, so that the same rows change again and
again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from struct import pack
from typing import Final

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import Column, Relation
from tests.support import row_messages
from tests.support.row_messages import UNCHANGED, Unchanged

BIGINT, TEXT = 20, 25
_COLUMNS: Final = (Column("id", BIGINT), Column("tenant", BIGINT), *(Column(name, TEXT) for name in "abcd"))
_IDENTITIES: Final = {b"d": "default", b"f": "full", b"i": "index"}
_WHERES: Final = ("id = {n}", "id >= {n}", "id = {n} AND tenant = {m}", "tenant = {m}", "a = 'x'", "b LIKE 'x%'", None)


@dataclass(frozen=True, slots=True)
class RandomTable:
    """A table whose key is ``id``, or ``id`` and ``tenant`` with an index as its replica identity."""

    oid: int
    name: str
    identity: bytes

    @property
    def key(self) -> tuple[str, ...]:
        return ("id", "tenant") if self.identity == b"i" else ("id",)

    def relation(self, rng: Random) -> Relation:
        """The table, with its columns in any order."""
        columns = tuple(
            Column(each.name, each.type_oid, is_key=self.identity == b"f" or each.name in self.key)
            for each in rng.sample(_COLUMNS, len(_COLUMNS))
        )
        identity = _IDENTITIES[self.identity]
        return Relation(self.oid, "public", self.name, identity, columns)  # type: ignore[arg-type]  # one of the four

    def shape(self, rng: Random, shape_id: str) -> ShapeDefinition:
        """A shape that can be kept on the table."""
        wheres = _WHERES if self.identity == b"f" else _WHERES[: 4 if self.identity == b"i" else 2]
        where = rng.choice([*wheres, None])
        names = [column.name for column in _COLUMNS]
        chosen = {*self.key, *rng.sample(names, rng.randint(1, 3))} if rng.random() < 0.9 else None
        return ShapeDefinition(
            shape_id,
            ("public", self.name),
            columns=None if chosen is None else tuple(sorted(chosen)),
            where=None if where is None else where.format(n=rng.randrange(4), m=rng.randrange(3)),
            replica=rng.choice(["default", "full"]),
            primary_key=self.key,
        )


TABLES: Final = (RandomTable(7, "plain", b"d"), RandomTable(8, "whole", b"f"), RandomTable(9, "indexed", b"i"))


def transaction(rng: Random, lsn: int, xid: int, described: dict[int, Relation]) -> Iterator[bytes]:
    """The messages of a transaction; ``described`` has the relations that the server has described so far."""
    yield b"B" + pack(">QqI", lsn, 0, xid)
    for _ in range(rng.randint(1, 6)):
        table = rng.choice(TABLES)
        if table.oid not in described or rng.random() < 0.1:
            described[table.oid] = table.relation(rng)
            yield relation_message(described[table.oid], table.identity)
        if rng.random() < 0.05:
            yield b"T" + pack(">IBI", 1, 0, table.oid)
            continue
        row = row_message(rng, described[table.oid])
        yield row.replace("é".encode(), b"\xe9\xe9") if rng.random() < 0.05 else row
    yield b"C\0" + pack(">QQq", lsn, lsn + 48, 0)


def relation_message(relation: Relation, identity: bytes) -> bytes:
    columns = b"".join(
        pack(">B", column.is_key) + column.name.encode() + pack(">xIi", column.type_oid, -1)
        for column in relation.columns
    )
    name = f"{relation.schema}\0{relation.name}\0".encode() + identity
    return b"R" + pack(">I", relation.relation_id) + name + pack(">h", len(relation.columns)) + columns


def row_message(rng: Random, relation: Relation) -> bytes:
    """A change of a random row, with the old row that the server sends for the replica identity."""
    before, oid = _values(rng, relation), relation.relation_id
    old = [before[column.name] if column.is_key else None for column in relation.columns]
    is_full, kind = relation.replica_identity == "full", rng.choice("IUUUD")
    if kind == "I":
        return row_messages.insert(oid, list(before.values())).data
    if kind == "D":
        return (row_messages.delete(oid, old=old) if is_full else row_messages.delete(oid, key=old)).data
    after = before | dict(rng.sample(list(_values(rng, relation).items()), rng.randint(0, 3)))
    new: list[str | Unchanged | None] = [
        UNCHANGED
        if column.type_oid == TEXT and after[column.name] == before[column.name] and rng.random() < 0.3
        else after[column.name]
        for column in relation.columns
    ]
    if is_full:
        return row_messages.update(oid, new, old=old).data
    has_key_changed = any(after[column.name] != before[column.name] for column in relation.columns if column.is_key)
    return row_messages.update(oid, new, key=old if has_key_changed else None).data


def _values(rng: Random, relation: Relation) -> dict[str, str | None]:
    numbers = {"id": str(rng.randrange(4)), "tenant": str(rng.randrange(3))}
    return {
        column.name: numbers.get(column.name) or rng.choice([None, "", "x", "xé", "y" * 20])
        for column in relation.columns
    }
