"""The whole snapshots' job: real tables in, the shape log out."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession

from flushtracker.cli import main
from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.delta.shape_log_reader import read_shape
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.snapshots.snapshot_loop import SnapshotLoop
from tests.support.snapshot_rig import SnapshotRig
from tests.support.waiting import wait_until

USERS = ("public", "users")
TABLE = "CREATE TABLE users (id int PRIMARY KEY, region text, name text)"
ROWS = "INSERT INTO users SELECT n, CASE WHEN n % 3 = 0 THEN 'eu' ELSE 'us' END, 'user ' || n FROM generate_series(1, {}) n"


@pytest.fixture
def rig(postgres: LocalPostgres, tmp_path: Path) -> SnapshotRig:
    postgres.execute(TABLE, "ALTER TABLE users REPLICA IDENTITY FULL", ROWS.format(10))
    return SnapshotRig(postgres, tmp_path)


def take(spark: SparkSession, rig: SnapshotRig, *shape_ids: str, again: bool = False, **postgres: object) -> None:
    SnapshotLoop(spark, rig.config(**postgres), Event(), shape_ids, again=again).run()


def test_snapshot_has_the_rows_of_each_shape(rig: SnapshotRig, spark: SparkSession) -> None:
    """All columns, chosen ones, and those of a condition; each snapshot ends with the row that says what it has seen."""
    rig.define(
        ShapeDefinition("all", USERS),
        ShapeDefinition("eu", USERS, columns=("name",), where="region = 'eu'"),
        ShapeDefinition("none", USERS, where="id > 100"),
        ShapeDefinition("without", USERS, snapshot=False),
    )
    take(spark, rig)
    everyone = [{"id": str(n), "region": "eu" if n % 3 == 0 else "us", "name": f"user {n}"} for n in range(1, 11)]
    assert rig.items("all") == sorted(everyone, key=lambda row: f'{row["id"]}"')
    assert rig.items("eu") == [{"id": f"{n}", "name": f"user {n}"} for n in (3, 6, 9)]
    assert rig.items("none") == []
    assert rig.rows("without") == []
    *items, end = rig.rows("all")
    assert items[0] | {"op_offset": 0} == {
        "source": rig.source,
        "shape_id": "all",
        "tx_offset": 0,
        "op_offset": 0,
        "operation": "insert",
        "key": '"public"."users"/"1"',
        "value": '{"id":"1","region":"us","name":"user 1"}',
        "old_value": None,
        "xid": 0,
        "commit_timestamp": None,
        "chunk": end["chunk"],
    }
    assert (end["tx_offset"], end["op_offset"], end["key"], end["xid"]) == (0, 2**63 - 1, None, 0)
    assert json.loads(str(end["value"])).keys() == {"xmin", "xmax", "xip", "lsn"}
    assert end["commit_timestamp"] is not None
    assert read_shape(rig.log, "eu").rows.num_rows == 3
