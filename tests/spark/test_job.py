"""``flushtracker track`` as a program: its start, its stop, and its errors."""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
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
from flushtracker.tracking.job.query import track_flushes
from tests.support.job_folder import JobFolder
from tests.support.processes import run_to_end
from tests.support.sample_source import SampleSource
from tests.support.seeds import every, in_turn
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_JOB: Final = str(_ROOT / "jobs" / "track_flushes.py")
_DEADLINE_S: Final = 300


def _run(arguments: list[str], environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, _JOB, *arguments]
    return run_to_end(command, timeout=_DEADLINE_S, env=os.environ | dict(environ or {}))


def _has_ack(job: JobFolder, ack_lsn: int) -> bool:
    log = job.root / "acks" / "_delta_log"
    return log.exists() and any(row[2] == ack_lsn for row in job.acks())


def test_help_names_the_exit_codes() -> None:
    """Scripts that start the job need them."""
    done = _run(["--help"])
    assert done.returncode == 0
    assert "exit codes: 0 done, or stopped" in done.stdout


def test_configuration_error_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """Spark is not started, and no traceback is shown."""
    config = tmp_path / "bad.yaml"
    config.write_text("files: data\nstorage: data\ntrack: {trigge: x}\n")
    done = _run(["--config", str(config)])
    assert done.returncode == 2
    assert re.fullmatch(
        r"flushtracker track: .*bad.yaml line 3: track.trigge is not a known key; .*trigger.*\n", done.stderr
    )


def test_missing_jars_are_exit_code_2(tmp_path: Path) -> None:
    """The message states how to get them."""
    job = JobFolder(tmp_path)
    done = _run(["--config", str(job.config_file())], {"FLUSHTRACKER_JARS": str(tmp_path)})
    assert done.returncode == 2
    assert re.match(r"flushtracker track: FLUSHTRACKER_JARS is .* is missing.*\n$", done.stderr)


@every(3, 2)
@pytest.mark.parametrize("options", in_turn([(), ("--verbose",)]))
def test_gap_is_exit_code_3_with_a_traceback_only_when_verbose(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The last line states the error; Spark's and Python's own output is shown only on request."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)])
    source.transaction(3000)
    job.write([source.transaction(4000)])
    done = _run(["--config", str(job.config_file()), *options])
    assert done.returncode == 3
    if options:
        assert "Traceback" in done.stderr
        return
    assert done.stderr.splitlines()[-1].startswith(
        f"flushtracker track: file:{tmp_path}/fragments/000001.jsonl: fragment "
    )
    assert "Traceback" not in done.stderr
    assert " INFO batch done batch_id=0 source=7301/1/shapes ack_lsn=0/7D0 pending_shapes=0 " in done.stderr


@every(3, 0)
@pytest.mark.parametrize("name", in_turn(["SIGTERM", "SIGINT"]))
def test_signal_finishes_the_running_batch_and_exits_with_0(tmp_path: Path, name: str) -> None:
    """Sent in mid-batch to the whole process group, as by Ctrl-C in a terminal, with two more batches to read."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    for lsn in (2000, 3000, 4000):
        job.write([source.transaction(lsn)])
    command = [sys.executable, "-m", "tests.support.signalled_job", name, "--config", str(job.config_file())]
    done = run_to_end(command, start_new_session=True, timeout=_DEADLINE_S, cwd=_ROOT)
    assert done.returncode == 0, done.stderr
    assert " INFO stopping after the running batch" in done.stderr
    assert done.stderr.splitlines()[-1].endswith(" INFO query ended last_batch_id=0")
    assert "Traceback" not in done.stderr
    assert job.acks() == [(source.name, 0, 2000)]
    assert (tmp_path / "checkpoint/commits/0").exists()
    assert not (tmp_path / "checkpoint/commits/1").exists()


def test_ctrl_c_while_spark_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    """The JVM is already starting; it completes its start and is then stopped."""
    job = JobFolder(tmp_path)
    job.write([SampleSource().transaction(2000)])
    command = [sys.executable, _JOB, "--config", str(job.config_file(trigger_ms=100))]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        try:
            # The first child only prints Java's version.
            wait_until(
                lambda: any("spark.deploy" in _command(child) for child in _children(process.pid)),
                "Spark's JVM runs",
                _DEADLINE_S,
            )
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=_DEADLINE_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert not (tmp_path / "acks").exists()
    wait_until(lambda: not _is_group_alive(process.pid), "the end of the process group", _DEADLINE_S)


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


@every(3, 1)
def test_spark_submit_stops_cleanly_on_sigterm(tmp_path: Path) -> None:
    """There the JVM is the parent: it alone receives the signal, and it prints Python's output to its stdout."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)])
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    jars = ",".join(str(path) for path in SPARK_JARS.paths())
    command = [submit, "--master", "local[2]", "--jars", jars, _JOB, "--config", str(job.config_file(trigger_ms=100))]
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            wait_until(lambda: _has_ack(job, 2000), "the ack", _DEADLINE_S)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=_DEADLINE_S)
        except BaseException:
            # It would be waited for, for ever.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, output
    assert " INFO query ended last_batch_id=0" in output


def test_changed_shape_groups_are_refused_with_both_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """A shape's state would be looked up in another group, and its pending transactions would be forgotten."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000, "a")])
    job.run(spark, shape_groups=4)
    with pytest.raises(
        StateError, match=r"written with shape_groups 4, and the job's shape_groups is 16; set it back to 4"
    ):
        job.run(spark, shape_groups=16)
    assert job.ack_lsns(source.name) == {0: 1998}


def test_changed_shuffle_partitions_are_reported_as_ineffective(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark silently keeps the checkpoint's value; an unchanged value is not logged."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000, "a")])
    for _ in range(2):
        job.run(spark)
    assert "shuffle_partitions" not in caplog.text
    config = job.config()
    track_flushes(spark, replace(config, state=replace(config.state, shuffle_partitions=3)), Event())
    assert "shuffle_partitions stays 2, as in the checkpoint; to change it to 3, restart capture" in caplog.text


def test_job_on_a_session_of_ones_own_has_the_partitions_of_its_configuration(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And other queries of the session keep theirs."""
    job = JobFolder(tmp_path)
    job.write([SampleSource().transaction(2000, "a")])
    config, before = job.config(), spark.conf.get("spark.sql.shuffle.partitions")
    track_flushes(spark, replace(config, state=replace(config.state, shuffle_partitions=3)), Event())
    assert {path.name for path in (tmp_path / "checkpoint/state/0").iterdir() if path.is_dir()} >= {"0", "1", "2"}
    assert not (tmp_path / "checkpoint/state/0/3").exists()
    assert spark.conf.get("spark.sql.shuffle.partitions") == before != "3"


def test_changed_shape_groups_are_refused_when_only_flushes_were_read(spark: SparkSession, tmp_path: Path) -> None:
    """A flush that arrives before its transaction is part of a group's state too."""
    job = JobFolder(tmp_path)
    job.write([SampleSource().flushed("users", 2000)])
    job.run(spark, shape_groups=4)
    with pytest.raises(StateError, match=r"written with shape_groups 4, and the job's shape_groups is 16"):
        job.run(spark, shape_groups=16)


@pytest.mark.parametrize("lost", in_turn(["commits/[123]", "commits/*"]))
def test_checkpoint_with_state_behind_its_batches_is_refused(spark: SparkSession, tmp_path: Path, lost: str) -> None:
    """As in a copy made while the job ran: to continue would skip the batches in between and what they made pending."""
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
        StateError, match=r"continues with batch 3, but its last committed state is that of batch (0|-1),"
    ):
        job.run(spark)
    assert max(job.ack_lsns(source.name).values()) == 2998


def test_lost_ack_table_is_restored_from_the_state(spark: SparkSession, tmp_path: Path) -> None:
    """At the start, not only when an ack advances again: capture needs the last ack."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000), source.transaction(3000, "users")])
    job.run(spark)
    shutil.rmtree(tmp_path / "acks")
    job.run(spark)
    assert job.acks() == [(source.name, 0, 2998)]


def test_checkpoint_that_is_not_a_directory_is_exit_code_4(spark: SparkSession, tmp_path: Path) -> None:
    """The error is one line with the path and Java's reason."""
    job = JobFolder(tmp_path)
    (tmp_path / "checkpoint").write_text("")
    with pytest.raises(StateError, match=rf"checkpoint {tmp_path}/checkpoint.*: \w+Exception: ") as caught:
        job.run(spark)
    assert "\n" not in str(caught.value)


def test_checkpoint_path_that_spark_cannot_read_back_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """It is refused before anything is written, since the job could never restart from it."""
    (tmp_path / "my job").mkdir()
    with pytest.raises(ConfigError, match=r"the checkpoint .*/my job/checkpoint contains ' ', and Spark cannot"):
        JobFolder(tmp_path / "my job").run(spark)


def test_missing_stream_directory_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise the job would wait forever for events that are written elsewhere."""
    job = JobFolder(tmp_path)
    (tmp_path / "flushes").rmdir()
    with pytest.raises(ConfigError, match=r"files.path/flushes: there is no directory .*/flushes; create it"):
        job.run(spark)


def test_dead_writer_on_a_quiet_table_is_noticed_without_a_batch(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No events arrive; the driver's own timer detects the stall, logs it after each doubling, and logs its end."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000, "users")])
    config = replace(job.config(trigger_ms=100), stall=StallConfig(grace_ms=300))
    stop = Event()
    caplog.set_level(logging.INFO)
    thread = Thread(target=track_flushes, args=(spark, config, stop))
    thread.start()

    def logged(text: str) -> list[str]:
        return [message for message in caplog.messages if text in message]

    try:
        wait_until(lambda: logged("shape stalled"), "the stall in the log", _DEADLINE_S)
        job.write([source.flushed("users", 2000)])
        wait_until(lambda: logged("shape no longer stalled"), "the stall's end in the log", _DEADLINE_S)
    finally:
        stop.set()
        thread.join(_DEADLINE_S)
    stalls = [
        re.search(r"source=7301/1/shapes shape_id=users last_flushed=0/7CF\+0 waited_ms=(\d+) held_bytes=2$", message)
        for message in logged("shape stalled")
    ]
    assert all(stall and int(stall[1]) >= 300 << times for times, stall in enumerate(stalls))
    assert logged("shape no longer stalled") == [
        "shape no longer stalled source=7301/1/shapes shape_id=users was_at=0/7CF+0 cause=flushed"
    ]
    assert job.ack_lsns(source.name) == {0: 1998, 1: 2000}
