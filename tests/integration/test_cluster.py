"""The job on a cluster whose processes share only the paths in the configuration."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from flushtracker.files.recording import read_recording
from flushtracker.replay.replay import Replay
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.in_memory_job import AckTable, Event, InMemoryJob
from tests.support.job_folder import JobFolder
from tests.support.standalone_cluster import StandaloneCluster, wait_for

_ROOT: Final = Path(__file__).parents[2]
_SOURCE: Final = "recording/1/shapes"
_TIMEOUT_S: Final = 240
_README_LINE: Final = r"""spark-submit --master spark://HOST:7077 \
  --jars "$(echo dist/jars/*.jar | tr ' ' ,)" --py-files dist/flushtracker.zip \
  jobs/track_flushes.py --config conf/track_flushes.yaml
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def _write_recording(job: JobFolder, ticks_per_batch: int) -> list[int]:
    """Write the recorded workload to the job's streams; return the acks of the core alone for the same batches."""
    in_memory = InMemoryJob(AckTable())
    replay = Replay(_SOURCE, load_shapes(_ROOT / "conf" / "shapes.yaml"))
    ticks = list(replay.ticks(read_recording(_ROOT / "tests" / "recording")))
    for first in range(0, len(ticks), ticks_per_batch):
        batch: list[Event] = []
        for tick in ticks[first : first + ticks_per_batch]:
            batch += [*tick.fragments, *tick.flushes]
        job.write(batch)
        in_memory.run_batch(batch)
    return in_memory.table.acks(_SOURCE)


def _ack_lsns(job: JobFolder) -> list[int]:
    return [ack_lsn for *_, ack_lsn in job.acks(_SOURCE)] if (job.root / "acks" / "_delta_log").exists() else []


def test_the_readmes_spark_submit_gives_the_acks_of_the_core_alone(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """In a folder like the checkout, with the example configuration and its relative paths, but another trigger."""
    assert _README_LINE in (_ROOT / "README.md").read_text()
    for name, target in (("dist", cluster.dist), ("jobs", _ROOT / "jobs")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "conf").mkdir()
    example = (_ROOT / "conf" / "track_flushes.yaml").read_text()
    (tmp_path / "conf" / "track_flushes.yaml").write_text(
        example.replace('trigger: "1 second"', "trigger: available_now")
    )
    job = JobFolder(tmp_path / "data")
    expected = _write_recording(job, ticks_per_batch=100)
    line = _README_LINE.replace("spark://HOST:7077", cluster.master_url)
    driver = cluster.start_driver("sh", "-c", line, cwd=tmp_path)
    assert driver.wait(_TIMEOUT_S) == 0, cluster.log_of(driver)
    assert _ack_lsns(job) == expected


def test_executor_killed_under_load_does_not_change_the_acks(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Its tasks run again on the other executor and on its replacement, from the committed state.

    The paths are URIs, and driver and executors have different current directories.
    """
    job = JobFolder(tmp_path / "job")
    expected = _write_recording(job, ticks_per_batch=6)
    config = job.config_file(shape_groups=16)
    config.write_text(config.read_text().replace(f" {job.root}/", f" file://{job.root}/"))
    driver = cluster.submit(str(_ROOT / "jobs" / "track_flushes.py"), "--config", str(config), cwd=tmp_path)
    wait_for("two acks", lambda: len(_ack_lsns(job)) >= 2)
    cluster.kill_an_executor()
    assert len(_ack_lsns(job)) < len(expected)
    assert driver.wait(_TIMEOUT_S) == 0, cluster.log_of(driver)
    assert _ack_lsns(job) == expected
    assert re.search(r"Launching executor app-\S+/2 on worker", cluster.log_of_master())
    wait_for("the end of the executors and their Python", cluster.is_idle)
