"""Shapes with subqueries through the whole loop: at every commit, a reader has what PostgreSQL answered then."""

import os
from random import Random
from typing import Final

import pytest

from flushtracker.errors import ConfigError
from flushtracker.shape_log.table.reader import read_shape
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape_parts import tables_of
from flushtracker.wal.log_offset import LogOffset
from tests.support.capture_rig import shape
from tests.support.joined_history import COLUMNS, SCHEMA, JoinedWorld, random_case, statement
from tests.support.joined_partitions import PartitionedWorld, partitioned_case
from tests.support.local_loop import LocalLoop
from tests.support.seeds import every, seeds
from tests.support.waiting import wait_until

_SEEDS: Final = int(os.environ.get("FLUSHTRACKER_JOINED_SEEDS", "1"))
_TRANSACTIONS: Final = 24
_DEADLINE_S: Final = 90

Answer = list[tuple[str | None, ...]]


class JoinedStory:
    """Random shapes and tables on a real server; each transaction is remembered with the server's answers after it."""

    def __init__(self, loop: LocalLoop, case: tuple[JoinedWorld, list[ShapeDefinition]]) -> None:
        self._loop, self._server = loop, loop.rig.server
        self.world, self.definitions = case
        self._server.execute(*self.world.statements())
        self.answers: list[tuple[int, dict[str, Answer]]] = []
        self._defined = 0

    def define(self, count: int) -> None:
        """Define so many of the shapes; those that are new get snapshots of all of their tables."""
        entries = []
        for definition in self.definitions[:count]:
            columns = {} if definition.columns is None else {"columns": list(definition.columns)}
            entries.append(shape(definition.id, ".".join(definition.table), where=definition.where, **columns))
        self._loop.rig.define(*entries)
        self._defined = count

    def play(self, transactions: int) -> None:
        """Commit random transactions, one after the other."""
        for _ in range(transactions):
            changes = self.world.transaction().changes
            self._server.execute("; ".join(["BEGIN", *map(statement, changes), "COMMIT"]))
            self._remember()

    def replace_partition(self, world: PartitionedWorld) -> None:
        """Replace a partition by an empty one, and wait until each shape on its table has lost it."""
        name, leaf, statements = world.replacement()
        ((oid,),) = self._server.execute(f"SELECT '{SCHEMA}.{name}_{leaf}'::regclass::oid")
        ((before,),) = self._server.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        self._server.execute(*statements)
        of_table = [each.id for each in self.definitions[: self._defined] if (SCHEMA, name) in tables_of(each)]
        emptied = f'"{SCHEMA}"."{name}"/*/{oid}'

        def is_lost() -> bool:
            self._loop.step()
            # A TRUNCATE may have emptied it before.
            return all(
                any(item.key == emptied and item.offset.tx_offset > before for item in self._loop.rig.items(each))
                for each in of_table
            )

        wait_until(is_lost, f"shapes without partition {leaf} of {name}", _DEADLINE_S, pause_s=0.1)
        self._remember()

    def _remember(self) -> None:
        ((lsn,),) = self._server.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        self.answers.append((int(lsn), {each.id: self._answer(each) for each in self.definitions}))

    def _answer(self, definition: ShapeDefinition) -> Answer:
        columns = ", ".join(f"{name}::text" for name in definition.columns or COLUMNS)
        query = f"SELECT {columns} FROM {'.'.join(definition.table)} WHERE {definition.where}"  # noqa: S608  a test's own
        answer = sorted([tuple(row) for row in self._server.execute(query)], key=repr)
        assert answer == self.world.answer(definition), "SQLite and PostgreSQL answer alike"
        return answer

    def settle(self) -> None:
        """Until all shapes that are defined can be read, and are as the last answers."""

        def is_settled() -> bool:
            self._loop.step()
            defined = self._loop.rig.registry()
            if len(defined) < self._defined:
                return False
            try:
                return all(self._rows(shape_id) == self.answers[-1][1][shape_id] for shape_id in defined)
            except ConfigError:
                return False

        wait_until(is_settled, "all shapes as the last answers", _DEADLINE_S, pause_s=0.1)

    def _rows(self, shape_id: str, at: LogOffset | None = None) -> Answer:
        found = read_shape(str(self._loop.log), shape_id, at).rows.to_pylist()
        return sorted([tuple(row.values()) for row in found], key=repr)

    def compared(self) -> int:
        """Compare each shape at each commit since its snapshot; returns how many of these could be compared."""
        count = 0
        for definition in self.definitions:
            bound = read_shape(str(self._loop.log), definition.id).bound
            for lsn, answers in self.answers:
                at = LogOffset.last_of(lsn)
                try:
                    found = self._rows(definition.id, at if bound is not None and at < bound else None)
                except ConfigError:
                    # From before the shape, or its snapshot.
                    continue
                assert found == answers[definition.id], f"{definition} at {at}"
                count += 1
        return count


@every(2, 0)
@pytest.mark.parametrize("seed", seeds(_SEEDS))
def test_shapes_with_subqueries_are_their_queries_at_every_commit(loop: LocalLoop, seed: int) -> None:
    """Added before and between transactions, with snapshots of all of their tables; over restarts of capture."""
    story = JoinedStory(loop, random_case(Random(seed), shapes=5))  # noqa: S311  reproducible
    story.play(10)
    story.define(3)
    loop.start()
    story.settle()
    story.play(_TRANSACTIONS // 2)
    story.define(5)
    story.play(5)
    story.settle()
    loop.stop()
    story.play(_TRANSACTIONS // 4)
    loop.start()
    story.play(_TRANSACTIONS // 4)
    story.settle()
    assert not [entry for entry in loop.rig.registry().values() if entry.removed_at is not None]
    assert story.compared() > 3 * _TRANSACTIONS


@every(2, 1)
@pytest.mark.parametrize("seed", seeds(_SEEDS))
def test_shapes_with_subqueries_on_partitioned_tables_are_their_queries(loop: LocalLoop, seed: int) -> None:
    """Rows move between partitions, and these are truncated, dropped, detached and attached, also while it is down."""
    world, definitions = partitioned_case(Random(seed), shapes=5)  # noqa: S311  reproducible
    story = JoinedStory(loop, (world, definitions))
    story.play(10)
    story.define(3)
    loop.start()
    story.settle()
    for _ in range(3):
        story.play(_TRANSACTIONS // 8)
        story.replace_partition(world)
    story.define(5)
    story.play(5)
    story.settle()
    loop.stop()
    loop.start()
    story.replace_partition(world)
    story.play(_TRANSACTIONS // 4)
    story.settle()
    assert not [entry for entry in loop.rig.registry().values() if entry.removed_at is not None]
    assert story.compared() > 2 * _TRANSACTIONS
