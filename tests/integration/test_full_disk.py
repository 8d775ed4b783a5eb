"""A full disk under a checkpoint, ack table or shape log: a clear error, and with free space again a clean restart."""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.processes import run_to_end
from tests.support.seeds import every

_ROOT: Final = Path(__file__).parents[2]


def _results(part: str, folder: Path) -> Any:
    command = ["unshare", "-rm", sys.executable, "-m", "tests.support.small_disk", part, str(folder)]
    done = run_to_end(command, cwd=_ROOT, start_new_session=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("part", "exit_code", "message"),
    [
        pytest.param(
            "checkpoint",
            4,
            r"no space is left under checkpoint \S+/disk/checkpoint, or on a disk that Spark uses; .*",
            marks=every(6, 0),
        ),
        pytest.param(
            "acks",
            5,
            r"ack table \S+/disk/acks cannot be written: .*No space left on device.*",
            marks=every(6, 4),
        ),
    ],
)
def test_full_disk_ends_the_job_and_loses_no_ack(tmp_path: Path, part: str, exit_code: int, message: str) -> None:
    """While the disk is full, no ack appears without its state and its row; afterwards all acks are there."""
    full, last = _results(part, tmp_path)
    assert (full[0], full[2]) == (exit_code, [2000]), full[1]
    assert re.fullmatch(f"flushtracker track: {message}", full[1]), full[1]
    assert (last[0], last[2]) == (0, [2000, 3000, 4000])


@every(6, 2)
def test_full_disk_under_the_shape_log_ends_the_writers_job_before_it_notifies(tmp_path: Path) -> None:
    """It cannot append to the log; afterwards nothing is lost, and all is notified."""
    full, last, boundaries = _results("log", tmp_path)
    assert (full[0], full[2:]) == (5, [False, boundaries[0]])
    assert re.fullmatch(r"flushtracker write: shape log \S+/disk/log/? cannot be written: .*No space left.*", full[1])
    assert last == [0, last[1], True, boundaries[2]]
