"""A full disk under the checkpoint or the ack table: a clear error, and with free space again a clean restart."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("part", "exit_code", "message"),
    [
        ("checkpoint", 4, r"no space is left under checkpoint \S+/disk/checkpoint, or on a disk that Spark uses; .*"),
        ("acks", 5, r"ack table \S+/disk/acks cannot be written: .*No space left on device.*"),
    ],
)
def test_full_disk_ends_the_job_and_loses_no_ack(tmp_path: Path, part: str, exit_code: int, message: str) -> None:
    """While the disk is full, no ack appears without its state and its row; afterwards all acks are there."""
    command = ["unshare", "-rm", sys.executable, "-m", "tests.support.small_disk", part, str(tmp_path)]
    done = subprocess.run(
        command, cwd=_ROOT, start_new_session=True, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    first, full, last = json.loads(done.stdout)
    assert (first[0], first[2]) == (0, [2000])
    assert (full[0], full[2]) == (exit_code, [2000]), full[1]
    assert re.fullmatch(f"flushtracker track: {message}", full[1]), full[1]
    assert (last[0], last[2]) == (0, [2000, 3000, 4000])
