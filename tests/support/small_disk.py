"""``python -m tests.support.small_disk PART FOLDER``: run a job whose ``PART`` is on a disk that fills up.

Needs its own mount namespace (``unshare -rm``). The job runs three times: with free space, on a full disk, and with
free space again. One JSON list is printed: for each run its exit code, its last line of output, and all acks so far.
If ``PART`` is ``log``, it is the writers' job, and instead of acks there are the log's rows and the last notification.
"""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from flushtracker.wal.log_offset import LogOffset
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource
from tests.support.shape_transactions import Transactions
from tests.support.write_folder import WriteFolder

_ROOT: Final = Path(__file__).parents[2]


_SPARE_BYTES: Final = 8 << 10
"""The claim of a starting writer still fits, its rows do not."""


def main(part: str, folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], check=True)
    (folder / part).symlink_to(disk / part)
    sys.stdout.write(json.dumps(write(folder, disk) if part == "log" else track(part, folder, disk)))


def write(folder: Path, disk: Path) -> list[Any]:
    """The writers' job, each time with one more transaction."""
    job, stream = WriteFolder(folder), Transactions()
    config = job.config_file()
    config.write_text(config.read_text().replace(f" {folder}/log,", f" {disk}/log,"))
    results = []
    for has_room in (True, False, True):
        stream.grow(1)
        job.write(stream.events([max(stream.items)]))
        (disk / "filler").unlink(missing_ok=True)
        if not has_room:
            fill(disk / "filler", spare_bytes=_SPARE_BYTES)
        outcome = _run("write", config)
        said = {offset for file in job.notified() for offset in file.values()}
        results.append([*outcome, job.log_rows("a") == stream.expected_rows(), max(said)])
    return [*results, [[*LogOffset.last_of(lsn)] for lsn in stream.items]]


def track(part: str, folder: Path, disk: Path) -> list[Any]:
    """The tracking job, each time with one more transaction."""
    job = JobFolder(folder)
    config = job.config_file()
    config.write_text(config.read_text().replace(f" {folder}/{part},", f" {disk}/{part},"))
    source = SampleSource()
    results = []
    for lsn, has_room in ((2000, True), (3000, False), (4000, True)):
        job.write([source.transaction(lsn, "users"), source.flushed("users", lsn)])
        if has_room:
            (disk / "filler").unlink(missing_ok=True)
        else:
            fill(disk / "filler")
        results.append([*_run("track", config), [ack_lsn for *_, ack_lsn in job.acks()]])
    return results


def fill(path: Path, spare_bytes: int = 0) -> None:
    """Fill the disk to the last byte, or up to ``spare_bytes``."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
        file.truncate(file.tell() - spare_bytes)


def _run(program: str, config: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "flushtracker", program, "--config", str(config)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr.strip().splitlines()[-1]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
