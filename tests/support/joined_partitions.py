"""Partitioned tables of shapes with subqueries: their changes as the server sends them, and partitions that go.

A partitioned table has a partition of its own and a partitioned one, with two below; of these one has its columns in
another order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.changes import Change, Delete, Insert, TransactionFragment, Truncate, Update
from flushtracker.wal.log_offset import LogOffset
from tests.support.joined_history import SCHEMA, TABLES, JoinedWorld, completed, random_case

_LEAVES: Final = range(3)


def leaf_of(row_id: int | str | None) -> int:
    """The partition that has a row: the first has the ids 1 and 2, the next one 3 and 4, the last 5."""
    return (int(row_id or 0) >= 3) + (int(row_id or 0) >= 5)


@dataclass
class PartitionedWorld(JoinedWorld):
    """Tables of which some are partitioned."""

    partitioned: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        JoinedWorld.__post_init__(self)
        self.leaves = {
            name: [replace(root, relation_id=10 * root.relation_id + leaf, name=f"{name}_{leaf}") for leaf in _LEAVES]
            for name, root in self.relations.items()
            if name in self.partitioned
        }

    def _truncate(self, name: str, offset: LogOffset) -> Change:
        if name in self.partitioned and self.rng.random() < 0.7:
            return self.truncated(name, self.rng.choice(_LEAVES), offset)
        return JoinedWorld._truncate(self, name, offset)

    def truncated(self, name: str, leaf: int, offset: LogOffset) -> Truncate:
        """The TRUNCATE of a partition, whose rows are gone."""
        for row in [row for row_id, row in self.rows[name].items() if leaf_of(row_id) == leaf]:
            self._drop(name, row)
        return Truncate(self.leaves[name][leaf], offset)

    def as_sent(self, fragment: TransactionFragment) -> TransactionFragment:
        """The fragment with the changes of partitioned tables as those of their partitions."""
        sent = [each for change in fragment.changes for each in self._of_leaves(change)]
        changes = tuple(replace(each, offset=LogOffset(fragment.lsn, 2 * n)) for n, each in enumerate(sent))
        return replace(fragment, changes=changes, last_log_offset=changes[-1].offset)

    def router(self, definitions: Iterable[ShapeDefinition]) -> EventRouter:
        """A router of shapes that knows the partitions, by OID."""
        router = EventRouter(by_oid=True)
        for name, leaves in self.leaves.items():
            for leaf in leaves:
                router.partitions.add(self.relations[name].relation_id, leaf.relation_id)
        for definition in definitions:
            router.add_shape(definition, table_oid=self.relations[definition.table[1]].relation_id)
        return router

    def _of_leaves(self, change: Change) -> list[Change]:
        leaves = self.leaves.get(change.relation.name)
        if leaves is None:
            return [change]
        match change:
            case Truncate():
                return [replace(change, relation=leaf) for leaf in leaves]
            case Insert():
                return [replace(change, relation=leaves[leaf_of(change.new["id"])])]
            case Delete():
                return [replace(change, relation=leaves[leaf_of(change.old["id"])])]
            case Update():
                old = change.old or change.new
                before, after = (leaves[leaf_of(row["id"])] for row in (old, change.new))
                if before is after:
                    return [replace(change, relation=after)]
                return [Delete(before, change.offset, old), Insert(after, change.offset, change.new)]

    def _creation(self, name: str) -> Iterator[str]:
        if name not in self.partitioned:
            yield from JoinedWorld._creation(self, name)
            return
        table = f"{SCHEMA}.{name}"
        yield f"CREATE TABLE {table} (id int PRIMARY KEY, a int, b int) PARTITION BY RANGE (id)"
        yield f"CREATE TABLE {table}_high PARTITION OF {table} DEFAULT PARTITION BY RANGE (id)"
        for leaf in _LEAVES:
            yield from self._arrival(name, leaf, "(b int, id int NOT NULL, a int)" if leaf == 2 else None)

    def _arrival(self, name: str, leaf: int, columns: str | None) -> Iterator[str]:
        """What makes a partition: attached, if it has its own columns."""
        table, parent = f"{SCHEMA}.{name}_{leaf}", _parent(name, leaf)
        bound = ("FOR VALUES FROM (MINVALUE) TO (3)", "FOR VALUES FROM (3) TO (5)", "DEFAULT")[leaf]
        if columns is None:
            yield f"CREATE TABLE {table} PARTITION OF {parent} {bound}"
        else:
            yield f"CREATE TABLE {table} {columns}"
            yield f"ALTER TABLE {parent} ATTACH PARTITION {table} {bound}"
        yield f"ALTER TABLE {table} REPLICA IDENTITY {self.identities[name]}"

    def replacement(self) -> tuple[str, int, list[str]]:
        """What takes a partition from its table, with its rows, and puts an empty one in its place; and which."""
        name, leaf = self.rng.choice(sorted(self.partitioned)), self.rng.choice(_LEAVES)
        self.truncated(name, leaf, LogOffset.first())
        table, kept = f"{SCHEMA}.{name}_{leaf}", f"{name}_{leaf}_until_{self.lsn}"
        goes = [f"DROP TABLE {table}"]
        if self.rng.random() < 0.7:
            goes = [
                f"ALTER TABLE {_parent(name, leaf)} DETACH PARTITION {table}",
                f"ALTER TABLE {table} RENAME TO {kept}",
                f"UPDATE {SCHEMA}.{kept} SET a = 9",  # noqa: S608  a test's own
            ]
        columns = self.rng.choice([None, "(a int, b int, id int NOT NULL)"])
        return name, leaf, [*goes, *self._arrival(name, leaf, columns)]


def _parent(name: str, leaf: int) -> str:
    return f"{SCHEMA}.{name}_high" if leaf else f"{SCHEMA}.{name}"


def partitioned_case(rng: Random, shapes: int = 4) -> tuple[PartitionedWorld, list[ShapeDefinition]]:
    """As ``random_case``, with some of the tables partitioned."""
    world, definitions = random_case(rng, shapes)
    partitioned = frozenset(rng.sample(TABLES, rng.choice([1, 2, 3])))
    found = PartitionedWorld(rng, world.identities, partitioned=partitioned)
    return found, [completed(definition, partitioned) for definition in definitions]
