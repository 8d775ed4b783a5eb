"""``python -m flushtracker.trials.warmup.program``: writes the class archives of Spark and of the local broker.

It writes only archives that are missing. Spark's is used only by jobs that start Spark themselves: under spark-submit
the cluster configures the JVM.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.jvm.class_archive import broker_archive, outdated_archives, spark_archive, write_archive
from flushtracker.jvm.jars import BROKER_JARS, SPARK_JARS
from flushtracker.jvm.java import check_java
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.local.broker import LocalBroker
from flushtracker.trials.warmup.sample_run import SampleStreams, write_sample_config

_WRITE_TIMEOUT_SECONDS: Final = 120


def main() -> int:
    """Write missing archives; returns the exit code."""
    try:
        java = check_java()
        broker, spark = broker_archive(BROKER_JARS.paths(), java), spark_archive(SPARK_JARS.paths(), java)
        if not broker.exists():
            _print("recording which classes the local broker loads, so that it starts in less time (once) ...")
            _create(broker, _write_broker)
            _print(f"the classes are in {broker}")
        if not spark.exists():
            _print("recording which classes Spark loads, so that it starts in less time (about a minute, once) ...")
            _create(spark, _write_spark)
            _print(f"the classes are in {spark}")
    except FlushtrackerError as error:
        sys.stderr.write(f"flushtracker: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _create(archive: Path, write: Callable[[Path, Path], None]) -> None:
    """Write the archive under another name, then rename it: a JVM that maps a truncated archive crashes."""
    jars = archive.parent
    try:
        for stale in jars.glob(".warmup-*"):
            shutil.rmtree(stale)
        # After Ctrl-C the JVM may still be writing to the folder.
        with tempfile.TemporaryDirectory(prefix=".warmup-", dir=jars, ignore_cleanup_errors=True) as folder:
            written = Path(folder) / archive.name
            write(Path(folder), written)
            with written.open("rb") as file:
                os.fsync(file.fileno())
            for old in outdated_archives(archive):
                old.unlink()
            written.replace(archive)
    except OSError as error:
        raise ConfigError(f"the archive of classes cannot be stored in {jars}: {error}") from error


def _write_broker(folder: Path, archive: Path) -> None:
    """Run a broker, write and read a record; the broker writes the archive when it exits."""
    with LocalBroker(folder / "broker", jvm_options=shlex.split(write_archive(archive))) as broker:
        config = SampleStreams(write_sample_config(folder, broker.bootstrap_servers)).config
        reader = TopicReader(config)
        list(reader.values(config.topics.shapes))
        reader.close()
        in_time = broker.stop(_WRITE_TIMEOUT_SECONDS)
    if not in_time or not archive.exists():
        raise FlushtrackerError("the broker whose classes were recorded left no archive")


def _write_spark(folder: Path, archive: Path) -> None:
    with LocalBroker(folder / "broker") as broker:
        _run_jobs(folder, broker.bootstrap_servers, archive)


def _run_jobs(folder: Path, bootstrap_servers: str, archive: Path) -> None:
    """Run both jobs, and wait for their JVM, which writes the archive after the program has ended."""
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {write_archive(archive)}"
    done = subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-m", "flushtracker.trials.warmup.sample_run", str(folder), bootstrap_servers],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode or not archive.exists():
        raise FlushtrackerError(f"the jobs whose classes were recorded left no archive:\n{done.stdout}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
