"""``python -m flushtracker.jobs.warmup.program``: writes the class archive, unless it exists.

Only jobs that start Spark themselves use it: under spark-submit the cluster configures the JVM.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.jvm.class_archive import archive_path, outdated_archives, write_archive
from flushtracker.jvm.jars import SPARK_JARS
from flushtracker.jvm.java import check_java
from flushtracker.local.broker import LocalBroker


def main() -> int:
    """Write the archive unless it exists; returns the exit code."""
    try:
        jars = SPARK_JARS.paths()
        archive = archive_path(jars, check_java())
        if not archive.exists():
            _print("recording which classes Spark loads, so that it starts in less time (about a minute, once) ...")
            _create(archive)
            _print(f"the classes are in {archive}")
    except FlushtrackerError as error:
        sys.stderr.write(f"flushtracker: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _create(archive: Path) -> None:
    """Write the archive under another name, then rename it: a JVM that maps a truncated archive crashes."""
    jars = archive.parent
    try:
        for stale in jars.glob(".warmup-*"):
            shutil.rmtree(stale)
        # After Ctrl-C the JVM may still write into the folder.
        with tempfile.TemporaryDirectory(prefix=".warmup-", dir=jars, ignore_cleanup_errors=True) as folder:
            written = Path(folder) / archive.name
            with LocalBroker(Path(folder) / "broker") as broker:
                _run_jobs(Path(folder), broker.bootstrap_servers, written)
            with written.open("rb") as file:
                os.fsync(file.fileno())
            for old in outdated_archives(archive):
                old.unlink()
            written.replace(archive)
    except OSError as error:
        raise ConfigError(f"the archive of classes cannot be stored in {jars}: {error}") from error


def _run_jobs(folder: Path, bootstrap_servers: str, archive: Path) -> None:
    """Run both jobs, and wait until their JVM has written the archive, which it does after the program's end."""
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {write_archive(archive)}"
    done = subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-m", "flushtracker.jobs.warmup.sample_run", str(folder), bootstrap_servers],
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
