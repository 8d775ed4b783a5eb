"""The shape log with Spark: its reader gives what the other one does, and its appends go on during upkeep."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import ConfigError, PositionError, ShapeEndedError, SnapshotMissingError
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.shape_writer import LogEnd
from flushtracker.shape_log.spark.shape_log_reader import SparkShapeLogReader
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shape_log.write.log_ends import read_log_ends
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.healed_log import HealedLog
from tests.support.sample_registry import register, shape_entry, table_entry, taken, wanted_entry
from tests.support.seeds import every
from tests.support.shape_log_rows import SOURCE, RandomLog, append, arrow, commit, item, snapshot_rows
from tests.support.snapshot_log import Play

_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
_SETTINGS = MergeSettings(merge_files=4, files_per_run=4, least_file_bytes=1, sealed_bytes=100_000)


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in an order of their own, with all columns that any has."""
    names = sorted({name for row in rows for name in row})
    return sorted(({name: row.get(name) for name in names} for row in rows), key=repr)


@every(3, 2)
@pytest.mark.parametrize("partitions", [3, pytest.param(0, marks=pytest.mark.soak)])
def test_spark_reads_and_folds_as_the_other_reader_does(spark: SparkSession, log: str, partitions: int) -> None:
    """Random logs with truncates, partial updates, moved keys and an open transaction; the rows and the log."""
    made = RandomLog(2, shape_ids=["users", "it's"], partitions=partitions)
    for number in range(8):
        rows = [row for _ in range(4) for row in made.transaction(most_items=12)]
        append(log, rows)
        if number == 5:
            ShapeLogUpkeep(log, settings=_SETTINGS).run(_NOW)
    append(log, [item((made.tx + 50, 0), "truncate", shape_id=shape_id) for shape_id in made.shape_ids])
    here, there = ShapeLogReader(log), SparkShapeLogReader(spark, log)
    for shape_id, states in made.at.items():
        at, then = states[len(states) // 2]
        assert ordered(here.read_rows(shape_id, at).rows.to_pylist()) == ordered(list(then.values()))
        for offset in (None, at):
            expected, found = here.read_rows(shape_id, offset), there.read_rows(shape_id, offset)
            assert found.bound == expected.bound
            assert ordered(found.rows.toArrow().to_pylist()) == ordered(expected.rows.to_pylist())
            position = None if offset is None else expected.position
            log_read = there.read_log(shape_id, position)
            log_rows = log_read.rows.orderBy("tx_offset", "op_offset").toArrow().to_pylist()
            assert log_rows == here.read_log(shape_id, position).rows.to_pylist()
            assert log_read.position == here.read_log(shape_id, position).position


def test_typed_columns_are_the_same(spark: SparkSession, log: str) -> None:
    """Those of the registry, in its order."""
    value = {"id": "7", "price": "12.30", "paid": "t", "day": "2026-01-02", "at": "2026-01-02 03:04:05+00"}
    append(log, [item((10, 0), "insert", "7", {**value, "data": "\\x00ff"}), commit(10)])
    append(log, [item((12, 0), "insert", "8", {"id": "8", "paid": "f", "data": "\\x", "price": None}), commit(12)])
    register(log, shape_entry(), table_entry())
    found = SparkShapeLogReader(spark, log).read_rows("users", typed=True).rows.orderBy("id")
    expected = ShapeLogReader(log).read_rows("users", typed=True).rows
    assert found.columns == expected.column_names
    # Spark has no instant without a time zone: a timestamp has that of the session.
    assert [row | {"at": None} for row in found.toArrow().to_pylist()] == [
        row | {"at": None} for row in expected.to_pylist()
    ]
    assert [row["at"] for row in found.toArrow().to_pylist()] == expected["at"].to_pylist()


def test_spark_refuses_what_the_other_reader_refuses(spark: SparkSession, log: str) -> None:
    """An unknown shape, one that has ended, offsets outside the log, and rows that the log does not have."""
    append(log, [item((10, 0), "update", "7", {"id": "7"}), commit(10)])
    append(log, [item((12, 0), "insert", "7", {"id": "7"}, shape_id="b"), commit(12, shape_id="b")])
    append(log, [item((14, 0), "delete", "7", {"id": "7"}, shape_id="b"), commit(14, shape_id="b")])
    append(log, [item((16, 0), "update", "7", {"id": "7"}, shape_id="b"), commit(16, shape_id="b")])
    reader = SparkShapeLogReader(spark, log)
    with pytest.raises(ConfigError, match="has no shape c"):
        reader.read_rows("c")
    with pytest.raises(PositionError, match=r"is ahead of the log of shape users .*, which has reached 1:0/A:0:"):
        reader.read_log("users", Position(SOURCE, 16, 0))
    register(log, shape_entry(), table_entry())
    for shape_id in ("users", "b"):
        with pytest.raises(PySparkException, match="the table had rows before the shape started"):
            SparkShapeLogReader(spark, log).read_rows(shape_id).rows.collect()
    register(log, shape_entry(removed_at=LogOffset(10, 0)))
    with pytest.raises(ShapeEndedError):
        SparkShapeLogReader(spark, log).read_rows("users")


def test_appends_by_spark_go_on_during_upkeep(spark: SparkSession, log: str) -> None:
    """Neither fails because of the other, no row is lost or there twice, and each reads the other's checkpoints."""
    DeltaTable(log).alter.set_table_properties({"delta.checkpointInterval": "3"})
    made = RandomLog(7, shape_ids=[f"shape-{n}" for n in range(8)])
    expected = list[dict[str, Any]]()
    stop, problems = threading.Event(), list[BaseException]()
    merges = 0

    def keep() -> None:
        nonlocal merges
        upkeep = ShapeLogUpkeep(log, settings=_SETTINGS)
        try:
            while not stop.wait(0.05):
                merges += upkeep.run(_NOW).merges
        except BaseException as error:  # noqa: BLE001  for the test's own thread
            problems.append(error)

    def fragments() -> Iterator[list[dict[str, Any]]]:
        for _ in range(2):
            yield from made.fragments()

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        for version, rows in enumerate(fragments()):
            expected += rows
            frame = spark.createDataFrame(arrow(rows))
            writer = frame.coalesce(1).write.format("delta").mode("append")
            writer.options(txnAppId="flushtracker: writer of this table", txnVersion=version).save(log)
    finally:
        stop.set()
        thread.join(60)
    assert problems == []
    assert merges > 1
    assert len(list((Path(log) / "_delta_log").glob("*.checkpoint.parquet"))) > 2
    found = spark.read.format("delta").load(log).toArrow().to_pylist()
    assert sorted(found, key=repr) == sorted(arrow(expected).to_pylist(), key=repr)
    here, there = ShapeLogReader(log), SparkShapeLogReader(spark, log)
    shape_id = next(shape_id for shape_id, states in made.at.items() if states)
    rows_there = there.read_rows(shape_id).rows.toArrow().to_pylist()
    assert ordered(rows_there) == ordered(here.read_rows(shape_id).rows.to_pylist())


@every(3, 0)
def test_spark_reads_snapshots_as_the_other_reader_does(spark: SparkSession, tmp_path: Path) -> None:
    """For a random table, early and late, taken again, merged; after every bound, and among many open transactions."""
    log = str(tmp_path / "log")
    play = Play(log, 0)
    compared = 0
    for number in range(16):
        play.step()
        if not play.snapshots or number % 5:
            continue
        here, there = ShapeLogReader(log), SparkShapeLogReader(spark, log)
        expected, found = here.read_rows("users"), there.read_rows("users")
        assert (found.bound, found.position) == (expected.bound, expected.position)
        assert ordered(found.rows.toArrow().to_pylist()) == ordered(expected.rows.to_pylist())
        for changes_only in (False, True):
            read = there.read_log("users", changes_only=changes_only)
            rows = read.rows.orderBy("tx_offset", "op_offset").toArrow().to_pylist()
            assert rows == here.read_log("users", changes_only=changes_only).rows.to_pylist()
        compared += 1
    assert compared > 1
    running = tuple(range(1001, 11_001, 2))
    snapshot = ShapeSnapshot(play.snapshots[-1].attempt + 1, MvccSnapshot(1001, 11_001, running), play.world.lsn, 2**31)
    append(log, snapshot_rows(snapshot, {}))
    rows = SparkShapeLogReader(spark, log).read_log("users").rows
    assert rows.count() == len(ShapeLogReader(log).read_log("users").rows)


def test_spark_refuses_a_shape_without_its_snapshot(spark: SparkSession, log: str) -> None:
    """And a follower from before the shape had one."""
    append(log, [item((10, 0), "insert", "1", {"id": "1"}), commit(10)])
    register(log, wanted_entry())
    with pytest.raises(SnapshotMissingError):
        SparkShapeLogReader(spark, log).read_rows("users")
    append(log, snapshot_rows(taken(2, "31:31:", 40), {"1": {"id": "1"}}))
    with pytest.raises(PositionError, match="had a snapshot of its table"):
        SparkShapeLogReader(spark, log).read_log("users", Position(SOURCE, 9, 0))


@every(3, 2)
def test_spark_continues_by_the_difference_as_the_other_reader_does(spark: SparkSession, tmp_path: Path) -> None:
    """For shapes that begin again, with other columns, and whose slots are lost; from positions of any time."""
    log, positions, healed = str(tmp_path / "log"), list[Position](), 0
    world = HealedLog(log, 3)
    world.snapshot()
    for number in range(40):
        world.step()
        here, there = ShapeLogReader(log), SparkShapeLogReader(spark, log)
        try:
            newest = here.read_log("users").position
        except ConfigError:
            continue
        if not positions or newest.attempt != positions[-1].attempt:
            positions.append(newest)
        if number % 20 != 19:
            continue
        for position in positions[-2:]:
            expected, found = here.read_log("users", position), there.read_log("users", position)
            assert (found.bound, found.position, found.source) == (expected.bound, expected.position, expected.source)
            rows = found.rows.orderBy("tx_offset", "op_offset").toArrow().to_pylist()
            others = expected.rows.to_pylist()
            healed += len(others) > 0 and others[0]["xid"] == 0
            assert in_any_order(rows) == in_any_order(others)
            operations = [row["operation"] for row in rows if row["xid"] == 0]
            assert operations == sorted(operations, key=lambda each: (each == "commit", each != "delete"))
    assert healed > 1


def in_any_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of a difference by their keys, without their numbers; columns of a row in any order."""
    found = []
    for row in rows:
        is_change = row["xid"] == 0 and row["operation"] != "commit"
        values = {name: row[name] and json.loads(row[name]) for name in ("value", "old_value")}
        found.append(row | values | ({"op_offset": 0} if is_change else {}))
    return ordered(found)


def test_where_logs_end_for_their_writer_is_not_where_a_snapshot_ends(spark: SparkSession, log: str) -> None:
    """Its rows are appended beside the writer, and its attempt is no chunk that the writer has begun."""
    snapshot = snapshot_rows(taken(1_700_000_000_000_000, "9:9:", 9), {"1": {"id": "1"}})
    append(log, [*snapshot, item((10, 0), "insert", "1", {"id": "1"}) | {"chunk": 3}, commit(10) | {"chunk": 3}])
    append(log, snapshot_rows(taken(1, "9:9:", 9), {"1": {"id": "1"}}, shape_id="b"))
    assert read_log_ends(spark, log) == {(SOURCE, "users"): LogEnd(LogOffset.last_of(10), LogOffset.last_of(10), 3)}


def streamed(spark: SparkSession, log: str, folder: Path, **options: str) -> list[tuple[str, int, int]]:
    """What one streaming query over ``log`` has got so far, in a table of its own in ``folder``; it continues there."""
    rows = spark.readStream.format("delta").options(**options).load(log)
    query = (
        rows.writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    assert query.awaitTermination(120)
    found = spark.read.format("delta").load(str(folder / "rows"))
    return sorted((row["shape_id"], row["tx_offset"], row["op_offset"]) for row in found.collect())


def net_changes(spark: SparkSession, log: str) -> Counter[str]:
    """The rows that the change data feed leaves after all inserts and deletes, from its first version on."""
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1).load(log)
    found = Counter[str]()
    for row in feed.drop("_commit_version", "_commit_timestamp").toArrow().to_pylist():
        found[repr(sorted(row.items() - {("_change_type", row["_change_type"])}))] += (
            1 if row["_change_type"] == "insert" else -1
        )
    return +found


@every(3, 1)
def test_streaming_readers_get_each_appended_row_once(spark: SparkSession, log: str, tmp_path: Path) -> None:
    """Across merges, and deletions of removed shapes' logs; the change data feed leaves the rows of the table."""
    DeltaTable(log).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    registry = RegistryTable(f"{log}_shapes", create=True)
    made = RandomLog(5, shape_ids=["a", "b", "users"])
    expected = list[tuple[str, int, int]]()
    merges = deletions = 0
    for number in range(12):
        rows = made.transaction()
        append(log, rows)
        expected += [(str(r["shape_id"]), int(str(r["tx_offset"])), int(str(r["op_offset"]))) for r in rows]
        if number == 8:
            removed_at = LogOffset(int(str(rows[-1]["tx_offset"])), 0)
            registry.append([shape_entry("a", removed_at=removed_at).to_json()], _NOW)
        upkeep = ShapeLogUpkeep(log, f"{log}_shapes", settings=_SETTINGS, delete_after=timedelta(days=1))
        done = upkeep.run(_NOW + timedelta(days=2))
        merges, deletions = merges + done.merges, deletions + done.deleted_shapes
        if number in {1, 9, 11}:
            assert streamed(spark, log, tmp_path / "stream", skipChangeCommits="true") == sorted(expected)
        if number == 7:
            streamed(spark, log, tmp_path / "strict", ignoreDeletes="true")
    assert (merges > 1, deletions) == (True, 1)
    with pytest.raises(StreamingQueryException, match="skipChangeCommits"):
        streamed(spark, log, tmp_path / "strict", ignoreDeletes="true")
    rows_left = spark.read.format("delta").load(log).toArrow().to_pylist()
    assert net_changes(spark, log) == Counter(repr(sorted(row.items())) for row in rows_left)
