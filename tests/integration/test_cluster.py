"""The job on a cluster whose processes share only the paths in the configuration."""

import os
import re
import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.brokers import Broker
from tests.support.config_file import change_config
from tests.support.job_folder import JobFolder
from tests.support.recorded_workload import RECORDING_OPTIONS, SOURCE, write_recorded_workload
from tests.support.seeds import every
from tests.support.spark_cluster import DEADLINE_S, SPARK_HOME
from tests.support.standalone_cluster import StandaloneCluster
from tests.support.waiting import wait_until
from tests.support.wheel_environment import WheelEnvironment

_ROOT: Final = Path(__file__).parents[2]
_TIMEOUT_S: Final = 240
_DOCUMENTED_LINES: Final = r"""flushtracker dist dist
spark-submit --master spark://HOST:7077 \
  --jars "$(echo dist/jars/*.jar | tr ' ' ,)" --py-files dist/flushtracker.zip \
  dist/jobs/track_flushes.py --config flushtracker.yaml
"""
_FLUSHTRACKER_YAML: Final = """\
postgres: unused
kafka: {{bootstrap_servers: "{bootstrap_servers}", topic_prefix: {prefix}, replication_factor: 1}}
storage: {folder}/data
shapes: {shapes}
track: {{trigger: available_now, shape_groups: 4, shuffle_partitions: 2}}
write: {{trigger: available_now, snapshot: manual, shape_groups: 4, shuffle_partitions: 2}}
status: false
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def _ack_lsns(job: JobFolder) -> list[int]:
    return [ack_lsn for *_, ack_lsn in job.acks(SOURCE)] if (job.root / "acks" / "_delta_log").exists() else []


@every(8, 2)
def test_the_documented_lines_write_and_acknowledge_the_recording(
    cluster: StandaloneCluster, broker: Broker, tmp_path: Path
) -> None:
    """In an empty folder, with the package as a wheel and one configuration for both jobs."""
    assert _DOCUMENTED_LINES in (_ROOT / "docs" / "deploying.md").read_text()
    dist, submit = _DOCUMENTED_LINES.replace("spark://HOST:7077", cluster.master_url).split("\n", 1)
    installed = WheelEnvironment(tmp_path / "venv")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "flushtracker.yaml").write_text(
        _FLUSHTRACKER_YAML.format(
            bootstrap_servers=broker.bootstrap_servers,
            prefix=f"cluster-{uuid.uuid4().hex[:8]}",
            folder=folder,
            shapes=_ROOT / "conf" / "shapes.yaml",
        )
    )
    environ = {
        "PATH": f"{installed.bin}:{SPARK_HOME / 'bin'}:{os.environ['PATH']}",
        "PYSPARK_DRIVER_PYTHON": str(installed.python),
        "FLUSHTRACKER_JARS": os.environ.get("FLUSHTRACKER_JARS") or str(_ROOT / ".jars"),
    }
    recording = shlex.join(RECORDING_OPTIONS)
    for line in (
        dist,
        "flushtracker topics --create",
        f"flushtracker replay {recording} --kafka flushtracker.yaml",
        submit.replace("track_flushes", "write_shapes"),
        submit,
        f"flushtracker verify --log data/log {recording}",
        "flushtracker report",
    ):
        driver = cluster.start_driver("sh", "-c", line, cwd=folder, **environ)
        assert driver.wait(DEADLINE_S) == 0, cluster.log_of(driver)


@every(8, 2)
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
    root = f"file://{job.root}"
    places = {"files": {"path": root}, "storage": root, "track": {"checkpoint": f"{root}/checkpoint"}}
    change_config(config, places)
    driver = cluster.submit(str(_ROOT / "jobs" / "track_flushes.py"), "--config", str(config), cwd=tmp_path)
    wait_until(lambda: len(_ack_lsns(job)) >= 2, "two acks", DEADLINE_S)
    cluster.kill_an_executor()
    assert len(_ack_lsns(job)) < len(expected)
    assert driver.wait(_TIMEOUT_S) == 0, cluster.log_of(driver)
    assert _ack_lsns(job) == expected
    assert re.search(r"Launching executor app-\S+/2 on worker", cluster.log_of_master())
    wait_until(cluster.is_idle, "the end of the executors and their Python", DEADLINE_S)
