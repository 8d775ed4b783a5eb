"""``flushtracker write`` that is killed at a chosen point of a batch: SIGKILL to the driver, its JVM and its workers.

``python -m tests.support.killed_writer POINT N --config FILE``: POINT is a key of ``POINTS``, and N is how often it is
passed before the kill. The process must lead its own process group. The workers write all rows, however few.
"""

import os
import signal
import sys
from functools import partial
from typing import Final

from flushtracker.cli import run
from flushtracker.shape_log.write import query
from flushtracker.shape_log.write.driver import WriteDriver
from flushtracker.shape_log.write.stored_rows import store_function
from tests.support.kill_points import KillPoints, arm

POINTS: Final[KillPoints] = {
    "before the append": (WriteDriver, "append", True),
    "between the files and their commit": (WriteDriver, "written", False),
    "between append and notification": (WriteDriver, "append", False),
    "between notification and batch commit": (WriteDriver, "notify", False),
}

if __name__ == "__main__":
    query.store_function = partial(store_function, few_bytes=0)  # type: ignore[attr-defined]
    arm(POINTS, sys.argv[1], int(sys.argv[2]), lambda: os.killpg(0, signal.SIGKILL))
    run(["write", *sys.argv[3:]])
