"""``jobs/track_flushes.py`` that is killed at one point of one batch: SIGKILL to the driver, its JVM and its workers.

``python -m tests.spark.killed_job POINT N --config FILE``; the points are the keys of ``POINTS``, N counts how often
the point is passed before. It must be the leader of a process group of its own.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from flushtracker.delta.ack_table import AckTable
from flushtracker.spark.driver import AckDriver
from jobs.track_flushes import main


def _die() -> None:
    os.killpg(0, signal.SIGKILL)


def _counted(function: Callable[..., Any], passes: int, *, before: bool) -> Callable[..., Any]:
    """``function`` that dies before or after its call number ``passes``, counted from 0."""
    calls = 0

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if before and calls > passes:
            _die()
        result = function(*args, **kwargs)
        if calls > passes:
            _die()
        return result

    return wrapper


# The class and method to die at, and whether before its call. The state of a batch is on disk before its ack is
# appended, and Spark commits the batch after ``handle_batch`` has returned.
POINTS: Final[dict[str, tuple[type, str, bool]]] = {
    "before the batch": (AckDriver, "handle_batch", True),
    "between state commit and Delta commit": (AckTable, "append", True),
    "between Delta commit and batch commit": (AckTable, "append", False),
}

if __name__ == "__main__":
    owner, name, dies_before = POINTS[sys.argv[1]]
    setattr(owner, name, _counted(getattr(owner, name), int(sys.argv[2]), before=dies_before))
    sys.exit(main(sys.argv[3:]))
