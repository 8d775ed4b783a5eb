"""A disk that is full under the checkpoint or under the acks: a clear end, and with room again a clean go-on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("part", "exit_code", "message"),
    [("checkpoint", 4, "no space is left under checkpoint "), ("acks", 5, "ack table ")],
)
def test_full_disk_ends_the_job_and_costs_no_ack(tmp_path: Path, part: str, exit_code: int, message: str) -> None:
    """While there is no room, no ack comes without its state or its row; afterwards the acks are what they would be."""
    command = ["unshare", "-rm", sys.executable, "-m", "tests.support.small_disk", part, str(tmp_path)]
    done = subprocess.run(
        command, cwd=_ROOT, start_new_session=True, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    with_room, without, with_room_again = json.loads(done.stdout)
    assert (with_room[0], with_room[2]) == (0, [2000])
    assert (without[0], without[2]) == (exit_code, [2000]), without[1]
    assert message in without[1]
    assert "No space left on device" in without[1] or part == "checkpoint"
    assert (with_room_again[0], with_room_again[2]) == (0, [2000, 3000, 4000])
