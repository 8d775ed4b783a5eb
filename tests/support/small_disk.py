"""``python -m tests.support.small_disk PART FOLDER``: run a job whose ``PART`` is on a disk that fills up.

Needs its own mount namespace (``unshare -rm``). The job runs twice: until the disk is full, which it is once the first
transaction is done, and with free space again. One JSON list is printed: for each run its exit code, its last line of
output, and all acks so far. If ``PART`` is ``log``, it is the writers' job, and instead of acks there are whether the
log has all rows, and the last notification.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from flushtracker.wal.log_offset import LogOffset
from tests.support.config_file import change_config
from tests.support.job_folder import JobFolder
from tests.support.processes import run_to_end
from tests.support.sample_source import SampleSource
from tests.support.shape_transactions import Transactions
from tests.support.waiting import wait_until
from tests.support.write_folder import WriteFolder

_ROOT: Final = Path(__file__).parents[2]
_DEADLINE_S: Final = 300


def main(part: str, folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], check=True)
    (folder / part).symlink_to(disk / part)
    sys.stdout.write(json.dumps(write(folder, disk) if part == "log" else track(part, folder, disk)))


def write(folder: Path, disk: Path) -> list[Any]:
    """The writers' job, with one more transaction on the full disk and after it."""
    job, stream = WriteFolder(folder), Transactions()
    config = change_config(job.config_file(), {"storage": str(disk)})

    def publish() -> None:
        stream.grow(1)
        job.write(stream.events([max(stream.items)]))

    def outcome() -> list[Any]:
        said = {offset for file in job.notified() for offset in file.values()}
        return [job.log_rows("a") == stream.expected_rows(), [*max(said)] if said else None]

    results = _run("write", config, disk, publish, outcome, lambda: [True, _last(stream)])
    return [*results, [[*LogOffset.last_of(lsn)] for lsn in stream.items]]


def _last(stream: Transactions) -> list[int]:
    return [*LogOffset.last_of(max(stream.items))]


def track(part: str, folder: Path, disk: Path) -> list[Any]:
    """The tracking job, with one more transaction on the full disk and after it."""
    job, source, lsns = JobFolder(folder), SampleSource(), iter((2000, 3000, 4000))
    is_checkpoint = part == "checkpoint"
    changes = {"track": {"checkpoint": f"{disk}/checkpoint"}} if is_checkpoint else {"storage": str(disk)}
    config = change_config(job.config_file(), changes)

    def publish() -> None:
        lsn = next(lsns)
        job.write([source.transaction(lsn, "users"), source.flushed("users", lsn)])

    return _run("track", config, disk, publish, lambda: [[lsn for *_, lsn in job.acks()]], lambda: [[2000]])


def fill(path: Path) -> None:
    """Fill the disk to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)


def _run(
    program: str,
    config: Path,
    disk: Path,
    publish: Callable[[], None],
    outcome: Callable[[], list[Any]],
    first: Callable[[], list[Any]],
) -> list[Any]:
    """What comes of the program on a full disk and after it; the disk is filled once ``first`` has come of it."""
    command = [sys.executable, "-m", "flushtracker", program, "--config", str(config)]
    at_once = config.read_text()
    config.write_text(at_once.replace("available_now", "200 ms"))
    publish()
    log = config.with_name("output")
    with log.open("wb") as output:
        running = subprocess.Popen(command, cwd=_ROOT, stdout=output, stderr=output)
    try:
        wait_until(lambda: running.poll() is not None or outcome() == first(), "the first transaction", _DEADLINE_S)
        fill(disk / "filler")
        publish()
        code = running.wait(_DEADLINE_S)
    finally:
        running.kill()
    full = [code, log.read_text().strip().splitlines()[-1], *outcome()]
    (disk / "filler").unlink()
    config.write_text(at_once)
    publish()
    done = run_to_end(command, cwd=_ROOT, timeout=_DEADLINE_S)
    return [full, [done.returncode, done.stderr.strip().splitlines()[-1], *outcome()]]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
