"""The whole snapshots' job: real tables in, the shape log out."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pytest
from pyspark.sql import SparkSession

from flushtracker.errors import (
    ConfigError,
    PostgresError,
    PostgresUnavailableError,
    ShapeEndedError,
    ShapeError,
    SnapshotMissingError,
)
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shape_log.snapshot import read_plan
from flushtracker.shape_log.snapshot.delta_snapshots import log_snapshots
from flushtracker.shape_log.snapshot.loop import SnapshotLoop
from flushtracker.shape_log.snapshot.read_job import ReadJob
from flushtracker.shape_log.table.reader import read_shape, read_shape_log
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.snapshot_rig import SnapshotRig
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
USERS: Final = ("public", "users")
TABLE: Final = "CREATE TABLE users (id int PRIMARY KEY, region text, name text)"
REGION: Final = "CASE WHEN n % 3 = 0 THEN 'eu' ELSE 'us' END"
BUSY: Final = (
    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'flushtracker_snapshot%' AND query ~ '^COPY'"
)


def insert(count: int) -> str:
    return f"INSERT INTO users SELECT n, {REGION}, 'user ' || n FROM generate_series(1, {count}) n"  # noqa: S608


@pytest.fixture
def rig(postgres: LocalPostgres, tmp_path: Path) -> SnapshotRig:
    """Ten users."""
    postgres.execute(TABLE, "ALTER TABLE users REPLICA IDENTITY FULL", insert(10))
    return SnapshotRig(postgres, tmp_path)


def loop(
    spark: SparkSession, rig: SnapshotRig, *shape_ids: str, again: bool = False, stop: Event | None = None
) -> SnapshotLoop:
    return log_snapshots(spark, rig.config(), stop or Event(), shape_ids, again=again)


def take(spark: SparkSession, rig: SnapshotRig, *shape_ids: str, again: bool = False) -> None:
    loop(spark, rig, *shape_ids, again=again).run()


def test_snapshot_has_the_rows_of_each_shape(rig: SnapshotRig, spark: SparkSession) -> None:
    """All columns, chosen ones, and those of a condition. The last row says what it has seen."""
    rig.define(
        ShapeDefinition("all", USERS),
        ShapeDefinition("eu", USERS, columns=("name",), where="region = 'eu'"),
        ShapeDefinition("none", USERS, where="id > 100"),
        ShapeDefinition("without", USERS, snapshot=False),
    )
    with pytest.raises(SnapshotMissingError):
        read_shape(rig.log, "eu")
    take(spark, rig)
    everyone = [{"id": str(n), "region": "eu" if n % 3 == 0 else "us", "name": f"user {n}"} for n in range(1, 11)]
    assert sorted(rig.items("all"), key=lambda row: int(row["id"] or 0)) == everyone
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
        "written_at": None,
    }
    assert (end["tx_offset"], end["op_offset"], end["key"], end["xid"]) == (0, 2**63 - 1, None, 0)
    assert json.loads(str(end["value"])).keys() == {"xmin", "xmax", "xip", "lsn", "next", "unseen"}
    assert end["commit_timestamp"] is not None
    read = read_shape(rig.log, "eu")
    assert (read.rows.num_rows, read.bound) == (3, LogOffset.last_before_real_offsets())
    assert read_shape_log(rig.log, "eu").rows.num_rows == 4


def test_snapshot_is_taken_once_and_again_if_asked_for(rig: SnapshotRig, spark: SparkSession) -> None:
    """A later run takes only what is missing; the one that is asked for replaces the earlier one."""
    rig.define(ShapeDefinition("one", USERS))
    take(spark, rig)
    rig.server.execute("DELETE FROM users WHERE id > 1")
    rig.define(ShapeDefinition("two", USERS))
    take(spark, rig)
    assert (len(rig.items("one")), len(rig.items("two"))) == (10, 1)
    take(spark, rig, "one", again=True)
    attempts = sorted({int(str(row["chunk"])) for row in rig.rows("one")})
    assert len(attempts) == 2
    assert len([row for row in rig.rows("one") if row["chunk"] == attempts[1]]) == 2
    assert read_shape(rig.log, "one").rows.num_rows == 1


def test_attempt_is_above_every_attempt_of_the_log(
    rig: SnapshotRig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the server's clock was set back, as it seems if the log is of the future."""
    rig.define(ShapeDefinition("one", USERS))
    future = 4_000_000_000_000_000
    monkeypatch.setattr("flushtracker.shape_log.snapshot.attempt.last_attempt", lambda *_: future)
    take(spark, rig)
    assert {row["chunk"] for row in rig.rows("one")} == {future + 1}


def test_shape_that_fails_is_named_and_the_others_are_taken(
    rig: SnapshotRig, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """One whose table has changed, and one whose condition has no outcome for a row; in one attempt with the others."""
    rig.server.execute("ALTER TABLE users ADD COLUMN old int")
    rig.define(
        ShapeDefinition("altered", USERS, columns=("old",)),
        ShapeDefinition("divides", USERS, columns=("name",), where="10 / (id - 5) > 0"),
        ShapeDefinition("fine", USERS, columns=("name",)),
    )
    rig.server.execute("ALTER TABLE users DROP COLUMN old")
    with pytest.raises(
        ShapeError, match=r"no snapshot of altered, divides: .*column old of table public.users was drop"
    ):
        take(spark, rig)
    assert (
        "shapes=divides: public.users: where cannot be evaluated for a row because of a division by zero" in caplog.text
    )
    assert len(rig.items("fine")) == 10
    assert rig.rows("altered") == rig.rows("divides") == []


def test_shape_whose_start_is_not_visible_waits(rig: SnapshotRig, spark: SparkSession) -> None:
    """A snapshot might miss a transaction before the shape's start, which is never sent either."""
    (entry,) = rig.define(ShapeDefinition("one", USERS), starts_visible=False)
    take(spark, rig)
    assert rig.rows("one") == []
    with pytest.raises(PostgresUnavailableError, match="no snapshot of one: capture has not said yet that all"):
        take(spark, rig, "one")
    rig.register([replace(entry, starts_visible=True)])
    take(spark, rig, "one")
    assert len(rig.items("one")) == 10


def test_shapes_that_cannot_have_a_snapshot_are_refused_by_name(rig: SnapshotRig, spark: SparkSession) -> None:
    """Before anything is read."""
    without, ended = rig.define(ShapeDefinition("without", USERS, snapshot=False), ShapeDefinition("ended", USERS))
    rig.register([replace(ended, removed_at=LogOffset(9, 0), ended_because="column x was dropped")])
    assert without.definition.snapshot is False
    with pytest.raises(ConfigError, match="the registry has no shape nobody of server "):
        take(spark, rig, "nobody")
    with pytest.raises(ConfigError, match="shape without has snapshot: false; set snapshot: true, and run"):
        take(spark, rig, "without")
    with pytest.raises(ShapeEndedError, match=r"shape ended of source .* ended: column x was dropped"):
        take(spark, rig, "ended")
    take(spark, rig)
    assert rig.rows("ended") == []


def test_many_shapes_on_partitions_are_read_in_ranges(
    rig: SnapshotRig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row of each partition is in the snapshot of its shape alone, once, although none of the attempts has all."""
    monkeypatch.setattr(read_plan, "PAGES_PER_RANGE", 2)
    monkeypatch.setattr("flushtracker.shape_log.snapshot.loop.SHAPES_PER_ATTEMPT", 25)
    rig.server.execute(
        "CREATE TABLE events (id int, day int, pad text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE events_0 PARTITION OF events FOR VALUES FROM (0) TO (30)",
        "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (30) TO (60)",
        "INSERT INTO events SELECT n, n % 60, repeat('x', 100) FROM generate_series(1, 1000) n",
    )
    rig.define(*[ShapeDefinition(f"day-{day}", ("public", "events"), ("id",), f"day = {day}") for day in range(60)])
    take(spark, rig)
    for day in range(60):
        ids = sorted(int(row["id"] or 0) for row in rig.items(f"day-{day}"))
        assert ids == [n for n in range(1, 1001) if n % 60 == day]
    assert len({row["chunk"] for day in range(60) for row in rig.rows(f"day-{day}")}) == 3


def in_background(run: Callable[[], None]) -> tuple[Thread, list[BaseException]]:
    errors = list[BaseException]()

    def target() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001  kept for the test to inspect
            errors.append(error)

    thread = Thread(target=target)
    thread.start()
    return thread, errors


def test_lost_connections_leave_nothing_behind(rig: SnapshotRig, spark: SparkSession) -> None:
    """All of them, while they read; the attempt is made again, from its beginning."""
    rig.server.execute(insert(200_010).replace("(1,", "(11,"))
    rig.define(ShapeDefinition("all", USERS))
    thread, errors = in_background(loop(spark, rig).run)
    wait_until(lambda: rig.server.execute(BUSY), "ranges that are read", timeout_s=60, pause_s=0.01)
    rig.server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'flushtracker_snapshot%'"
    )
    thread.join(120)
    assert errors == []
    assert len(rig.items("all")) == 200_010
    assert len(rig.rows("all")) == 200_011


def test_stop_during_an_attempt_leaves_nothing_behind(
    rig: SnapshotRig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends without an error, although the job has not been done."""
    rig.server.execute(insert(200_010).replace("(1,", "(11,"))
    rig.define(ShapeDefinition("all", USERS))
    stop = Event()
    start: Callable[[ReadJob], None] = ReadJob.start

    def start_and_stop(job: ReadJob) -> None:
        start(job)
        wait_until(lambda: rig.server.execute(BUSY), "ranges that are read", timeout_s=60, pause_s=0.01)
        stop.set()

    monkeypatch.setattr(ReadJob, "start", start_and_stop)
    loop(spark, rig, stop=stop).run()
    assert rig.rows("all") == []


def test_killed_job_loses_only_the_attempt_that_runs(
    rig: SnapshotRig, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGKILL to the driver and its JVM while the second table is read.

    The log has all of the first and nothing of the second; the next run reads only the second.
    """
    rig.server.execute(TABLE.replace("users", "large"), "ALTER TABLE large REPLICA IDENTITY FULL")
    rig.server.execute(insert(200_000).replace("users", "large"))
    rig.define(ShapeDefinition("small", USERS), ShapeDefinition("large", ("public", "large")))
    command = [sys.executable, "-m", "flushtracker", "snapshot", "--config", str(rig.config_file())]
    with (tmp_path / "job.log").open("w+b") as log:
        killed = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
        try:
            reads_large = f"{BUSY} AND query LIKE '%large%'"
            wait_until(lambda: rig.server.execute(reads_large), "ranges that are read", timeout_s=120, pause_s=0.01)
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait(60)
    small = rig.rows("small")
    assert len(small) == 11
    assert rig.rows("large") == []
    caplog.set_level(logging.INFO)
    take(spark, rig)
    assert len(rig.items("large")) == 200_000
    assert rig.rows("small") == small
    assert " rows=200000 " in caplog.text
    text = (tmp_path / "job.log").read_text() + caplog.text
    assert [text.count(f"snapshot started table=public.{table} ") for table in ("users", "large")] == [1, 2]


def test_job_with_an_interval_goes_on_and_tries_again(rig: SnapshotRig, spark: SparkSession) -> None:
    """It finds new shapes, and takes what has failed once that is possible."""
    rig.settings["trigger"] = "200 ms"
    rig.define(ShapeDefinition("first", USERS))
    stop = Event()
    other = rig.server.connect()
    other.autocommit = False
    other.cursor().execute("LOCK TABLE users")
    config = rig.config(lock_timeout="100 ms")
    thread, errors = in_background(log_snapshots(spark, config, stop).run)
    try:
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: rig.server.execute(waiting), "an attempt", timeout_s=30, pause_s=0.01)
        wait_until(lambda: not rig.server.execute(waiting), "its end", timeout_s=30, pause_s=0.01)
        other.rollback()
        wait_until(lambda: rig.rows("first"), "a snapshot", timeout_s=60)
        rig.define(ShapeDefinition("second", USERS))
        wait_until(lambda: rig.rows("second"), "the snapshot of a new shape", timeout_s=60)
    finally:
        other.close()
        stop.set()
        thread.join(60)
    assert errors == []
    assert len({row["chunk"] for row in rig.rows("first")}) == 1


def test_other_failures_of_the_server_end_a_single_run(rig: SnapshotRig, spark: SparkSession) -> None:
    """With the server's own words."""
    rig.define(ShapeDefinition("all", USERS))
    config = rig.config()
    config = replace(config, postgres=replace(config.postgres, publication="nowhere"))
    with pytest.raises(PostgresError, match="no snapshot of all: there is no publication nowhere"):
        log_snapshots(spark, config, Event()).run()
