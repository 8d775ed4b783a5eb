"""``flushtracker track`` as its users meet it: started, stopped, and refusing."""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pyspark
import pytest
from pyspark.sql import SparkSession

from flushtracker.config.job_config import StallConfig
from flushtracker.errors import ConfigError, StateError
from flushtracker.jvm.jars import SPARK_JARS
from flushtracker.spark.track_flushes_query import track_flushes
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource

_ROOT: Final = Path(__file__).parents[2]
_JOB: Final = str(_ROOT / "jobs" / "track_flushes.py")
_DEADLINE_S: Final = 300


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.1)


def _run(arguments: list[str], environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, _JOB, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S, env=os.environ | dict(environ or {})
    )


def _has_ack(job: JobFolder, ack_lsn: int) -> bool:
    log = job.root / "acks" / "_delta_log"
    return log.exists() and any(row[2] == ack_lsn for row in job.acks())


def test_help_names_the_exit_codes() -> None:
    """What a script that starts the job needs to know."""
    done = _run(["--help"])
    assert done.returncode == 0
    assert "exit codes: 0 done, or stopped" in done.stdout


def test_configuration_error_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """No Spark is started for it, and no traceback shown."""
    config = tmp_path / "bad.yaml"
    config.write_text("source: {format: files, fragmints: x}\n")
    done = _run(["--config", str(config)])
    assert done.returncode == 2
    assert re.fullmatch(
        r"flushtracker track: .*bad.yaml line 1: source.fragmints is not known; .*fragments.*\n", done.stderr
    )


def test_missing_jars_are_exit_code_2(tmp_path: Path) -> None:
    """The message says how to get them."""
    job = JobFolder(tmp_path)
    done = _run(["--config", str(job.config_file())], {"FLUSHTRACKER_JARS": str(tmp_path)})
    assert done.returncode == 2
    assert re.match(r"flushtracker track: FLUSHTRACKER_JARS is .* is missing.*\n$", done.stderr)


def test_gap_is_exit_code_3_with_a_traceback_only_when_verbose(tmp_path: Path) -> None:
    """The last line says what is wrong; Spark's and Python's own words are there for those who ask."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)])
    source.transaction(3000)
    job.write([source.transaction(4000)])
    quiet = _run(["--config", str(job.config_file())])
    assert quiet.returncode == 3
    assert quiet.stderr.splitlines()[-1].startswith(
        f"flushtracker track: file:{tmp_path}/fragments/000001.jsonl: fragment "
    )
    assert "Traceback" not in quiet.stderr
    assert " INFO batch done batch_id=0 source=7301/1/shapes ack_lsn=0/7D0 pending_shapes=0 " in quiet.stderr
    verbose = _run(["--config", str(job.config_file()), "--verbose"])
    assert verbose.returncode == 3
    assert "Traceback" in verbose.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signal_finishes_the_running_batch_and_exits_with_0(tmp_path: Path, name: str) -> None:
    """Sent in mid-batch to the whole process group, as by a terminal's Ctrl-C; two batches more would be there."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    for lsn in (2000, 3000, 4000):
        job.write([source.transaction(lsn)])
    command = [sys.executable, "-m", "tests.support.signalled_job", name, "--config", str(job.config_file())]
    done = subprocess.run(
        command, start_new_session=True, capture_output=True, text=True, check=False, timeout=_DEADLINE_S, cwd=_ROOT
    )
    assert done.returncode == 0, done.stderr
    assert " INFO stopping after the running batch" in done.stderr
    assert done.stderr.splitlines()[-1].endswith(" INFO query ended last_batch_id=0")
    assert "Traceback" not in done.stderr
    assert job.acks() == [(source.name, 0, 2000)]
    assert (tmp_path / "checkpoint/commits/0").exists()
    assert not (tmp_path / "checkpoint/commits/1").exists()


def test_ctrl_c_while_spark_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    """The JVM is on its way by then; it is let up, and then ended."""
    job = JobFolder(tmp_path)
    job.write([SampleSource().transaction(2000)])
    command = [sys.executable, _JOB, "--config", str(job.config_file(trigger_ms=100))]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        try:
            # The first child only asks for Java's version.
            _wait_for(lambda: any("spark.deploy" in _command(child) for child in _children(process.pid)))
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=_DEADLINE_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert not (tmp_path / "acks").exists()
    _wait_for(lambda: not _is_group_alive(process.pid))


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_spark_submit_stops_cleanly_on_sigterm(tmp_path: Path) -> None:
    """There the JVM is the parent, it alone gets the signal, and it prints what Python says to its stdout."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)])
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    jars = ",".join(str(path) for path in SPARK_JARS.paths())
    command = [submit, "--master", "local[2]", "--jars", jars, _JOB, "--config", str(job.config_file(trigger_ms=100))]
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True, env=environ) as process:
        _wait_for(lambda: _has_ack(job, 2000))
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 0, output
    assert " INFO query ended last_batch_id=0" in output


def test_changed_shape_groups_are_refused_with_both_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """The state of a shape would be looked for in another group: its pending transactions would be forgotten."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000, "a")])
    job.run(spark, shape_groups=4)
    with pytest.raises(
        StateError, match=r"written with shape_groups 4, and state.shape_groups is 16; set it back to 4"
    ):
        job.run(spark, shape_groups=16)
    assert job.ack_lsns(source.name) == {0: 1998}


def test_changed_shuffle_partitions_are_said_to_have_no_effect(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark keeps those of the checkpoint without a word; unchanged ones are not worth one."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000, "a")])
    for _ in range(2):
        job.run(spark)
    assert "shuffle_partitions" not in caplog.text
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        job.run(spark)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert "shuffle_partitions stays 2, as the checkpoint was made; for 3 of them restart capture" in caplog.text


def test_changed_shape_groups_are_refused_where_only_flushes_came(spark: SparkSession, tmp_path: Path) -> None:
    """A flush ahead of its transaction waits in a group too."""
    job = JobFolder(tmp_path)
    job.write([SampleSource().flushed("users", 2000)])
    job.run(spark, shape_groups=4)
    with pytest.raises(StateError, match=r"written with shape_groups 4, and state.shape_groups is 16"):
        job.run(spark, shape_groups=16)


@pytest.mark.parametrize("lost", ["commits/[123]", "commits/*"])
def test_checkpoint_with_state_behind_its_batches_is_refused(spark: SparkSession, tmp_path: Path, lost: str) -> None:
    """A copy made while the job ran: going on would skip the batches in between, and the shapes that owe for them."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    for batch in ([source.transaction(2000)], [source.transaction(3000, "users")], [source.transaction(4000)]):
        job.write(batch)
    job.write([source.transaction(5000)])
    job.run(spark)
    assert max(job.ack_lsns(source.name).values()) == 2998
    for path in (tmp_path / "checkpoint").glob(lost):
        path.unlink()
    with pytest.raises(
        StateError, match=r"goes on with batch 3, but its last committed state is that of batch (0|-1),"
    ):
        job.run(spark)
    assert max(job.ack_lsns(source.name).values()) == 2998


def test_lost_ack_table_gets_the_ack_that_the_state_knows(spark: SparkSession, tmp_path: Path) -> None:
    """At once, and not only when something moves again: capture waits for it."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000), source.transaction(3000, "users")])
    job.run(spark)
    shutil.rmtree(tmp_path / "acks")
    job.run(spark)
    assert job.acks() == [(source.name, 0, 2998)]


def test_checkpoint_that_is_not_a_directory_is_exit_code_4(spark: SparkSession, tmp_path: Path) -> None:
    """With the path and Java's reason, on one line."""
    job = JobFolder(tmp_path)
    (tmp_path / "checkpoint").write_text("")
    with pytest.raises(StateError, match=rf"checkpoint {tmp_path}/checkpoint.*: \w+Exception: ") as caught:
        job.run(spark)
    assert "\n" not in str(caught.value)


def test_checkpoint_path_that_spark_cannot_read_back_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Before anything is written there, since it would never start again."""
    (tmp_path / "my job").mkdir()
    with pytest.raises(ConfigError, match=r"state.checkpoint .*/my job/checkpoint has ' ', with which Spark cannot"):
        JobFolder(tmp_path / "my job").run(spark)


def test_missing_stream_directory_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """A wrong path would otherwise wait for ever for events that go elsewhere."""
    job = JobFolder(tmp_path)
    (tmp_path / "flushes").rmdir()
    with pytest.raises(ConfigError, match=r"source.flushes: there is no directory .*/flushes; create it"):
        job.run(spark)


def test_dead_writer_on_a_quiet_table_is_noticed_without_a_batch(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing arrives any more; the driver's own clock notices, says so once, and says when it moves again."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000, "users")])
    config = replace(job.config(trigger_ms=100), stall=StallConfig(grace_ms=300))
    stop = Event()
    caplog.set_level(logging.INFO)
    thread = Thread(target=track_flushes, args=(spark, config, stop))
    thread.start()

    def said(words: str) -> list[str]:
        return [message for message in caplog.messages if words in message]

    try:
        _wait_for(lambda: bool(said("shape stalled")))
        job.write([source.flushed("users", 2000)])
        _wait_for(lambda: bool(said("shape moves again")))
    finally:
        stop.set()
        thread.join(_DEADLINE_S)
    assert re.search(r"source=7301/1/shapes shape_id=users last_flushed=0/7CF\+0 waited_ms=\d+", said("stalled")[0])
    assert len(said("shape stalled")) == 1
    assert job.ack_lsns(source.name) == {0: 1998, 1: 2000}
