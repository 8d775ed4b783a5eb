"""``flushtracker track`` that is killed at a chosen point of a batch: SIGKILL to the driver, its JVM and its workers.

``python -m tests.support.killed_job POINT N --config FILE``: POINT is a key of ``POINTS``, and N is how often it is
passed before the kill; ``N@PATH``, once there is something at the path. The process must lead its own process group.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Final

from flushtracker.cli import run
from flushtracker.tracking.acks.ack_table import AckTable
from flushtracker.tracking.job.driver import AckDriver
from tests.support.kill_points import KillPoints, arm


def _die() -> None:
    os.killpg(0, signal.SIGKILL)


# The state of a batch is on disk before its ack is appended, and Spark commits the batch after ``handle_batch`` has
# returned.
POINTS: Final[KillPoints] = {
    "before the batch": (AckDriver, "handle_batch", True),
    "between state commit and Delta commit": (AckTable, "append", True),
    "between Delta commit and batch commit": (AckTable, "append", False),
}

if __name__ == "__main__":
    passes, _, path = sys.argv[2].partition("@")
    arm(POINTS, sys.argv[1], int(passes), _die, lambda: not path or Path(path).exists())
    run(["track", *sys.argv[3:]])
