"""``python -m tests.support.small_disk PART FOLDER``: run a job whose ``PART`` is on a disk that fills up.

Needs its own mount namespace (``unshare -rm``). The job runs three times: with free space, on a full disk, and with
free space again. One JSON list is printed: for each run its exit code, its last line of output, and all acks so far.
"""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource

_ROOT: Final = Path(__file__).parents[2]


def main(part: str, folder: Path) -> None:
    job = JobFolder(folder)
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], check=True)
    config = job.config_file()
    config.write_text(config.read_text().replace(f" {folder}/{part},", f" {disk}/{part},"))
    (folder / part).symlink_to(disk / part)
    source = SampleSource()
    results = []
    for lsn, has_room in ((2000, True), (3000, False), (4000, True)):
        job.write([source.transaction(lsn, "users"), source.flushed("users", lsn)])
        if has_room:
            (disk / "filler").unlink(missing_ok=True)
        else:
            fill(disk / "filler")
        results.append([*_run(config), [ack_lsn for *_, ack_lsn in job.acks()]])
    sys.stdout.write(json.dumps(results))


def fill(path: Path) -> None:
    """Fill the disk to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)


def _run(config: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "flushtracker", "track", "--config", str(config)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr.strip().splitlines()[-1]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
