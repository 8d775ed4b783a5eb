"""Shapes with subqueries on a real server: resolved, copied in one snapshot, routed, and right at every commit."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from flushtracker.errors import ShapeError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shape_log.fold import Item
from flushtracker.shape_log.snapshot.due_shapes import due_shapes
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from tests.support.joined_history import COLUMNS, SCHEMA, TABLES, JoinedWorld, folded, random_case, statement
from tests.support.joined_partitions import PartitionedWorld, partitioned_case
from tests.support.seeds import seeds
from tests.support.snapshots_by_hand import resolved, snapshot_of, streamed_fragments

_SEEDS: Final = int(os.environ.get("FLUSHTRACKER_JOINED_SEEDS", "1"))
_TRANSACTIONS: Final = 20
Answer = list[tuple[str | None, ...]]


def play(
    server: LocalPostgres, world: JoinedWorld, definitions: Sequence[ShapeDefinition], count: int
) -> list[tuple[int, dict[str, Answer]]]:
    """Commit transactions, each with a place past it and the answers of the server after it."""
    answers = []
    for _ in range(count):
        server.execute("; ".join(["BEGIN", *map(statement, world.transaction().changes), "COMMIT"]))
        ((lsn,),) = server.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        answers.append((int(lsn), {each.id: answer(server, world, each) for each in definitions}))
    return answers


def answer(server: LocalPostgres, world: JoinedWorld, definition: ShapeDefinition) -> Answer:
    columns = ", ".join(f"{name}::text" for name in definition.columns or COLUMNS)
    query = f"SELECT {columns} FROM {'.'.join(definition.table)} WHERE {definition.where}"  # noqa: S608  a test's own
    found = sorted([tuple(row) for row in server.execute(query)], key=repr)
    assert found == world.answer(definition), "SQLite and PostgreSQL answer alike"
    return found


def create(server: LocalPostgres, world: JoinedWorld) -> None:
    """The tables, a publication and a slot."""
    server.execute(
        *world.statements(),
        "CREATE PUBLICATION shapes FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
    )


@pytest.mark.parametrize("case", [random_case, partitioned_case])
@pytest.mark.parametrize("seed", seeds(_SEEDS))
def test_shapes_with_subqueries_are_their_queries_at_every_commit(
    postgres: LocalPostgres, seed: int, case: Callable[[Random, int], tuple[JoinedWorld, list[ShapeDefinition]]]
) -> None:
    """From one snapshot of all of their tables on, as the server sends the changes."""
    world, random_shapes = case(Random(seed), 6)  # noqa: S311  reproducible
    definitions = [
        replace(each, inner_tables=(), primary_key=None, keys_have_partitions=False) for each in random_shapes
    ]
    create(postgres, world)
    play(postgres, world, definitions, 8)
    list(streamed_fragments(postgres))
    entries = resolved(postgres, definitions)
    shapes = [entry for entry in entries if isinstance(entry, ShapeEntry)]
    assert [entry.definition.id for entry in shapes] == [each.id for each in definitions]
    due = due_shapes(Registry.of(entries), {}, shapes[0].source.rpartition("/")[0])
    logs: dict[str, list[Item]] = {}
    for group in due.tables:
        logs |= snapshot_of(postgres, group)
    router = EventRouter(by_oid=True)
    for table in (entry.binding for entry in entries if isinstance(entry, TableEntry)):
        for partition in table.partitions:
            router.partitions.add(table.oid, partition.oid)
    for entry in shapes:
        router.add_shape(entry.definition, 1, entry.table_oid)
    answers = play(postgres, world, definitions, _TRANSACTIONS)
    fragments = list(streamed_fragments(postgres))
    for lsn, expected in answers:
        while fragments and fragments[0].lsn < lsn:
            for part in router.route(fragments.pop(0)):
                logs[part.shape_id] += [
                    (item.operation, item.key, None if item.value is None else json.dumps(item.value))
                    for item in part.items
                ]
        for entry in shapes:
            found = folded(entry.definition, world, logs[entry.definition.id])
            assert found == expected[entry.definition.id], f"{entry.definition} at {lsn}"
    assert not fragments


def test_what_the_catalog_does_not_allow_of_a_shape_with_subqueries_is_named(postgres: LocalPostgres) -> None:
    """The rows of all of its tables."""
    create(
        postgres,
        PartitionedWorld(Random(0), dict.fromkeys(TABLES, "default"), partitioned=frozenset({"projects"})),  # noqa: S311
    )
    postgres.execute(
        f"CREATE TABLE {SCHEMA}.keyless (id int, name text)",
        f"ALTER TABLE {SCHEMA}.keyless REPLICA IDENTITY FULL",
    )
    refused = {
        "a IN (SELECT id FROM main.projects WHERE a = 1)": "contain only id",
        "a IN (SELECT id FROM main.nowhere)": "main.nowhere",
        "a IN (SELECT c FROM main.projects)": "column",
        "a IN (SELECT id FROM main.projects) OR a IN (SELECT id FROM main.projects_1)": "have the same rows",
        "a IN (SELECT id FROM main.projects_high) OR a IN (SELECT id FROM main.projects)": "have the same rows",
        "a IN (SELECT id FROM main.orgs WHERE id IN (SELECT a FROM main.projects_2)) "
        "OR a IN (SELECT id FROM main.projects_high)": "one table in both places",
        "a IN (SELECT id FROM main.keyless)": "has no key",
        "a IN (SELECT id FROM main.projects WHERE b IN (SELECT name FROM main.orgs))": "name",
    }
    for where, reason in refused.items():
        with pytest.raises(ShapeError) as raised:
            resolved(postgres, [ShapeDefinition("shape", (SCHEMA, "tasks"), where=where)])
        assert reason in str(raised.value), where
    with pytest.raises(ShapeError, match="snapshot is false"):
        resolved(
            postgres,
            [ShapeDefinition("s", (SCHEMA, "tasks"), where="a IN (SELECT id FROM main.projects)", snapshot=False)],
        )
    postgres.execute(f"ALTER TABLE {SCHEMA}.keyless ADD PRIMARY KEY (id)")
    with pytest.raises(ShapeError, match="types are incompatible"):
        resolved(postgres, [ShapeDefinition("s", (SCHEMA, "tasks"), where="a IN (SELECT name FROM main.keyless)")])
