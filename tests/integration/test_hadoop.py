"""The jobs on Hadoop: checkpoints and tables on HDFS, and the writers' executors on YARN.

Other storages have all of it; here that is for the soak, but for what HDFS and YARN do themselves.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.cli import main
from tests.support.config_file import change_config
from tests.support.hadoop_cluster import HadoopCluster
from tests.support.job_folder import JobFolder
from tests.support.racing_entries import racing_programs_replace_no_commit
from tests.support.recorded_workload import RECORDING_OPTIONS
from tests.support.seeds import every
from tests.support.spark_cluster import DEADLINE_S
from tests.support.store_jobs import (
    Store,
    Tracked,
    killed_driver_continues,
    undisturbed_job,
)
from tests.support.store_tables import log_is_claimed_appended_merged_and_read
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_TIMEOUT_S: Final = 480


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    with HadoopCluster(tmp_path_factory.mktemp("hadoop")) as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    return undisturbed_job(spark, tmp_path_factory.mktemp("undisturbed"))


def _commits(table: str) -> int:
    return DeltaTable(table).version() if DeltaTable.is_deltatable(table) else -1


@every(4, 0)
def test_programs_that_race_replace_no_commit_on_hdfs(hadoop: HadoopCluster) -> None:
    """deltalake renames there, unless the name is taken."""
    racing_programs_replace_no_commit(0, f"{hadoop.hdfs}/raced")


@pytest.mark.soak
def test_log_on_hdfs_is_claimed_appended_merged_and_read(hadoop: HadoopCluster) -> None:
    log_is_claimed_appended_merged_and_read(f"{hadoop.hdfs}/merged", {})


@every(4, 0)
def test_killed_driver_continues_on_hdfs(
    spark: SparkSession, undisturbed: JobFolder, hadoop: HadoopCluster, tmp_path: Path
) -> None:
    job = Tracked(undisturbed, tmp_path, Store(hadoop.hdfs, {}, {}), "killed")
    killed_driver_continues(spark, undisturbed, job)


@every(4, 0)
def test_killed_executor_of_the_writers_on_yarn_loses_nothing(hadoop: HadoopCluster, tmp_path: Path) -> None:
    """The log, its registry and the checkpoint are on HDFS; the killed executor's tasks run again elsewhere."""
    assert main(["replay", *RECORDING_OPTIONS, "--out", str(tmp_path)]) == 0
    place = f"{hadoop.hdfs}/writers"
    config = tmp_path / "write_shapes.yaml"
    shutil.copy(_ROOT / "conf" / "replay.yaml", config)
    # Spark takes a path without a scheme for one on HDFS.
    files = {"path": f"file://{tmp_path}", "max_files_per_trigger": 3}
    at_once = {"flush": "batch", "trigger": "available_now", "shape_groups": 4, "shuffle_partitions": 2}
    change_config(config, {"files": files, "storage": place, "write": at_once})
    driver = hadoop.submit(str(_ROOT / "jobs" / "write_shapes.py"), "--config", str(config), cwd=tmp_path)

    def has_begun() -> bool:
        assert driver.poll() is None, hadoop.log_of(driver)
        return _commits(f"{place}/log") > 3

    wait_until(has_begun, "some batches", DEADLINE_S)
    killed = hadoop.kill_an_executor()
    before = _commits(f"{place}/log")
    assert driver.wait(_TIMEOUT_S) == 0, hadoop.log_of(driver)
    assert _commits(f"{place}/log") > before
    assert killed not in hadoop.executor_pids()
    assert main(["verify", "--log", f"{place}/log", *RECORDING_OPTIONS]) == 0
