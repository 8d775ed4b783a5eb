"""The job on a cluster whose processes share only the paths in the configuration."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from flushtracker.cli import main
from tests.support.job_folder import JobFolder
from tests.support.recorded_workload import SOURCE, write_recorded_workload
from tests.support.seeds import every
from tests.support.spark_cluster import DEADLINE_S
from tests.support.standalone_cluster import StandaloneCluster
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_TIMEOUT_S: Final = 240
_DOCUMENTED_LINE: Final = r"""spark-submit --master spark://HOST:7077 \
  --jars "$(echo dist/jars/*.jar | tr ' ' ,)" --py-files dist/flushtracker.zip \
  jobs/track_flushes.py --config conf/track_flushes.yaml
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def _ack_lsns(job: JobFolder) -> list[int]:
    return [ack_lsn for *_, ack_lsn in job.acks(SOURCE)] if (job.root / "acks" / "_delta_log").exists() else []


@every(4, 3)
def test_the_documented_spark_submit_gives_the_cores_acks(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """In a folder like the checkout, with the example configuration and its relative paths, but another trigger."""
    assert _DOCUMENTED_LINE in (_ROOT / "docs" / "deploying.md").read_text()
    for name, target in (("dist", cluster.dist), ("jobs", _ROOT / "jobs")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "conf").mkdir()
    example = (_ROOT / "conf" / "track_flushes.yaml").read_text()
    (tmp_path / "conf" / "track_flushes.yaml").write_text(
        example.replace('trigger: "1 second"', "trigger: available_now")
    )
    job = JobFolder(tmp_path / "data")
    expected = write_recorded_workload(job, ticks_per_batch=100)
    line = _DOCUMENTED_LINE.replace("spark://HOST:7077", cluster.master_url)
    driver = cluster.start_driver("sh", "-c", line, cwd=tmp_path)
    assert driver.wait(_TIMEOUT_S) == 0, cluster.log_of(driver)
    assert _ack_lsns(job) == expected


@every(4, 1)
def test_the_documented_spark_submit_writes_shapes(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """The writers' job with the configuration of `make run`, but to its end at once; executors append to the log."""
    for name, target in (("dist", cluster.dist), ("jobs", _ROOT / "jobs")):
        (tmp_path / name).symlink_to(target)
    recording = ("--recording", str(_ROOT / "tests" / "recording"), "--shapes", str(_ROOT / "conf" / "shapes.yaml"))
    assert main(["replay", *recording, "--out", str(tmp_path / "data")]) == 0
    (tmp_path / "conf").mkdir()
    example = (_ROOT / "conf" / "write_replay.yaml").read_text()
    for own, other in (
        ("max_files_per_trigger: 1 ", "max_files_per_trigger: 10 "),
        ("flush: hold ", "flush: batch "),
        ('trigger: "2 seconds"', "trigger: available_now"),
    ):
        assert own in example
        example = example.replace(own, other)
    (tmp_path / "conf" / "write_shapes.yaml").write_text(example)
    line = _DOCUMENTED_LINE.replace("spark://HOST:7077", cluster.master_url).replace("track_flushes", "write_shapes")
    driver = cluster.start_driver("sh", "-c", line, cwd=tmp_path)
    assert driver.wait(_TIMEOUT_S) == 0, cluster.log_of(driver)
    assert main(["verify", "--log", str(tmp_path / "data" / "log"), *recording]) == 0


@every(4, 3)
def test_master_that_starts_again_leaves_the_job_its_executors(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """With a folder of what has registered, as in docker-compose.yml; without, the job waits for executors for ever."""
    job = JobFolder(tmp_path / "job")
    expected = write_recorded_workload(job, ticks_per_batch=30)
    driver = cluster.submit_job(job)
    wait_until(lambda: len(_ack_lsns(job)) >= 2, "two acks", DEADLINE_S)
    executors = cluster.executor_pids()
    cluster.restart_master()
    known = "Application has been re-registered"
    wait_until(lambda: known in cluster.log_of_master(), "the job knows the new master", DEADLINE_S)
    wait_until(lambda: _ack_lsns(job) == expected, "all acks", _TIMEOUT_S)
    assert cluster.executor_pids() == executors
    cluster.kill_driver(driver)
    wait_until(cluster.is_idle, "the end of the executors and their Python", DEADLINE_S)


@pytest.mark.soak
def test_executor_killed_under_load_does_not_change_the_acks(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Its tasks run again on the other executor and on its replacement, from the committed state.

    The paths are URIs, and driver and executors have different current directories.
    """
    job = JobFolder(tmp_path / "job")
    expected = write_recorded_workload(job, ticks_per_batch=6)
    config = job.config_file(shape_groups=16)
    config.write_text(config.read_text().replace(f" {job.root}/", f" file://{job.root}/"))
    driver = cluster.submit(str(_ROOT / "jobs" / "track_flushes.py"), "--config", str(config), cwd=tmp_path)
    wait_until(lambda: len(_ack_lsns(job)) >= 2, "two acks", DEADLINE_S)
    cluster.kill_an_executor()
    assert len(_ack_lsns(job)) < len(expected)
    assert driver.wait(_TIMEOUT_S) == 0, cluster.log_of(driver)
    assert _ack_lsns(job) == expected
    assert re.search(r"Launching executor app-\S+/2 on worker", cluster.log_of_master())
    wait_until(cluster.is_idle, "the end of the executors and their Python", DEADLINE_S)
