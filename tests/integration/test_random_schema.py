"""Random changes of schemas and rows on a real server: each shape equals its query, or has ended by itself."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest

from flushtracker.errors import PostgresError
from tests.support.capture_rig import CaptureRig, RunningCapture, shape
from tests.support.shape_outcome import Outcome, outcome

_SEEDS: Final = int(os.environ.get("FLUSHTRACKER_SCHEMA_SEEDS", "6"))
_TABLES: Final = 8
_ROUNDS: Final = 6
_DEADLINE_S: Final = 20.0
_LISTED: Final = ("id", "v")
_ROWS: Final = (
    "INSERT INTO {t} (id, v) SELECT i, 'new' FROM generate_series({low}, {low} + 3) i ON CONFLICT DO NOTHING",
    "UPDATE {t} SET v = v || '{low}' WHERE id > {low}",
    "UPDATE {t} SET id = id + 30 WHERE id = {low}",
    "DELETE FROM {t} WHERE id = {low}",
    "DELETE FROM {t} WHERE id < 4",
    "TRUNCATE {t}",
)
"""What changes rows. Some fail, as on a table that has another name now: that is as good a history as any."""
_SCHEMAS: Final = (
    "ALTER TABLE {t} ADD n{low} int",
    "ALTER TABLE {t} ADD n{low} int DEFAULT {low}",
    "ALTER TABLE {t} ADD n{low} float DEFAULT random()",
    "ALTER TABLE {t} ALTER w SET DEFAULT {low}",
    "ALTER TABLE {t} DROP w",
    "ALTER TABLE {t} RENAME w TO x",
    "ALTER TABLE {t} RENAME v TO y; UPDATE {t} SET y = 'y'; ALTER TABLE {t} RENAME y TO v",
    "ALTER TABLE {t} ALTER w TYPE bigint",
    "ALTER TABLE {t} ALTER v TYPE text USING upper(v)",
    "ALTER TABLE {t} RENAME TO {t}_new; UPDATE {t}_new SET v = 'renamed'",
    "ALTER TABLE {t}_new RENAME TO {t}",
    "ALTER TABLE {t} REPLICA IDENTITY FULL",
    "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
    "ALTER TABLE {t} SET UNLOGGED",
    "VACUUM FULL {t}",
    "CREATE INDEX ON {t} (v)",
    "DROP TABLE {t}_a",
    "TRUNCATE {t}_a",
    "TRUNCATE {t}_a, {t}_b",
    "ALTER TABLE {t} DETACH PARTITION {t}_b; UPDATE {t}_b SET v = 'detached'",
    "ALTER TABLE {t} ATTACH PARTITION {t}_b FOR VALUES FROM (10) TO (100)",
    "CREATE TABLE {t}_{low} PARTITION OF {t} FOR VALUES FROM ({low}00) TO ({low}99)",
    "INSERT INTO {t} (id, v) VALUES ({low}10, 'in the new one')",
    (
        "CREATE TABLE {t}_c (LIKE {t}); INSERT INTO {t}_c (id, v) VALUES (9001, 'before'); "
        "ALTER TABLE {t} ATTACH PARTITION {t}_c FOR VALUES FROM (9000) TO (9100)"
    ),
)


def create(table: str, *, is_partitioned: bool) -> list[str]:
    """The statements that create a table with a key, a value and one more column."""
    columns = f"CREATE TABLE {table} (id int PRIMARY KEY, v text, w int DEFAULT 1)"
    if not is_partitioned:
        return [columns]
    return [
        f"{columns} PARTITION BY RANGE (id)",
        f"CREATE TABLE {table}_a PARTITION OF {table} FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE {table}_b PARTITION OF {table} FOR VALUES FROM (10) TO (100)",
    ]


def random_statements(rng: random.Random, table: str) -> Iterator[str]:
    """One round for one table: mostly rows, and some of it in one transaction, which may be rolled back."""
    for _ in range(rng.randint(1, 4)):
        pool = _SCHEMAS if rng.random() < 0.15 else _ROWS
        statements = [rng.choice(pool).format(t=table, low=rng.randint(1, 20))]
        if rng.random() < 0.3:
            statements.append(rng.choice(_ROWS).format(t=table, low=rng.randint(1, 20)))
            yield f"BEGIN; {'; '.join(statements)}; {rng.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])}"
        else:
            yield from statements


def play(rig: CaptureRig, rng: random.Random, tables: list[str]) -> None:
    """Some rounds, with capture running, stopped or restarted meanwhile."""
    capture: RunningCapture | None = rig.start()
    rig.wait(lambda: len(rig.registry()) == 2 * len(tables), "all shapes")
    for _ in range(_ROUNDS):
        statements = [statement for table in tables for statement in random_statements(rng, table)]
        rng.shuffle(statements)
        for statement in statements:
            with suppress(PostgresError):
                rig.server.execute(statement)
        if capture is None:
            capture = rig.start()
        elif rng.random() < 0.4:
            capture.stop()
            capture = None
    if capture is None:
        rig.start()
    rig.execute_and_wait("SELECT 1")


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_each_shape_equals_its_query_or_has_ended(rig: CaptureRig, seed: int) -> None:
    """Whatever is done to its table, and whether capture runs meanwhile or not."""
    rng = random.Random(seed)  # noqa: S311  not for secrets
    tables = [f"t{number}" for number in range(_TABLES)]
    for number, table in enumerate(tables):
        rig.server.execute(*create(table, is_partitioned=number % 2 == 1))
    columns = {f"{table}{kind}": table for table in tables for kind in ("_all", "_listed")}
    listed = {shape_id: _LISTED if shape_id.endswith("_listed") else None for shape_id in columns}
    rig.define(
        *(
            shape(shape_id, f"public.{table}", **({"columns": list(_LISTED)} if listed[shape_id] else {}))
            for shape_id, table in columns.items()
        )
    )
    play(rig, rng, tables)
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        found: dict[str, Outcome] = {
            shape_id: outcome(rig, shape_id, listed[shape_id], table) for shape_id, table in columns.items()
        }
        if all(each.holds for each in found.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert {shape_id: each for shape_id, each in found.items() if not each.holds} == {}
    assert {each.ended is None for each in found.values()} == {True, False}, "some survive, and some end"
