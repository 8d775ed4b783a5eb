"""Spark SQL reads shapes by the query of docs/shape_log.md, and has what ``read_shape`` has."""

from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.shape_log.table.log_table import create_shape_log
from tests.support.busy_log import BusyLog
from tests.support.foreign_readers import folded_rows, joined, spark_rows
from tests.support.joined_history import TABLES, Identity
from tests.support.joined_log import JOINED_TABLES, joined_shape, played
from tests.support.joined_partitions import PartitionedWorld
from tests.support.seeds import every, in_turn
from tests.support.shape_log_rows import RandomLog, append
from tests.support.waiting import wait_until


@every(3, 0)
def test_spark_sql_has_the_rows_of_a_busy_log(spark: SparkSession, tmp_path: Path) -> None:
    """While the log is appended to, merged, folded and snapshotted again, past 2**32 transactions."""
    read = spark_rows(spark)
    with BusyLog(str(tmp_path / "log"), 1) as busy:
        wait_until(lambda: busy.version > busy.first_version + 5, "further commits", 120)
        version = busy.version
        assert read(busy.log, version, "users", "n") == folded_rows(busy.log, version, "users", "n")


@every(3, 1)
def test_spark_sql_folds_every_operation(spark: SparkSession, tmp_path: Path) -> None:
    """Truncates of partitions, changed keys, nulls and unknown columns."""
    log, rows, read = str(tmp_path / "log"), RandomLog(3, ["users"], partitions=3), spark_rows(spark)
    create_shape_log(log)
    for _ in range(40):
        append(log, rows.transaction())
    version = DeltaTable(log).version()
    for column in ("a", "c"):
        found = folded_rows(log, version, "users", column)
        assert found
        assert read(log, version, "users", column) == found


@every(3, 2)
@pytest.mark.parametrize("membership", in_turn(["IN", "NOT IN"]))
def test_spark_sql_joins_the_tables_of_a_shape_with_subqueries(
    spark: SparkSession, tmp_path: Path, membership: str
) -> None:
    """``NOT IN``, too, with nulls; and of partitioned tables."""
    sql = joined("VERSION AS OF", JOINED_TABLES).replace("> 7", "> 3")
    partitioned = {"tasks", "projects"} if membership == "IN" else set[str]()
    log, shape = str(tmp_path / membership), joined_shape(membership, partitioned)
    create_shape_log(log)
    identities: dict[str, Identity] = dict.fromkeys(TABLES, "full")
    world = PartitionedWorld(Random(5), identities, partitioned=frozenset(partitioned))  # noqa: S311  reproducible
    read, seen = spark_rows(spark, sql.replace("city IN", f"city {membership}")), set[str]()
    for _ in range(2):
        ((_, answers),) = played(log, world, [shape], 12)[-1:]
        found = read(log, DeltaTable(log).version(), shape.id, "a")
        assert found == answers[shape.id]
        seen.add(str(found))
    assert len(seen) > 1
