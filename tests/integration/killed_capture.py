"""``jobs/capture_wal.py`` that is killed at one point: SIGKILL to its process, in the middle of whatever it does.

``python -m tests.integration.killed_capture POINT N --config FILE``; the points are the keys of ``POINTS``, N counts
how often the point is passed before.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from flushtracker.capture.outbox import Outbox
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.postgres.capture_source import CaptureSource
from flushtracker.postgres.replication_stream import ReplicationStream
from jobs.capture_wal import main


def _counted(function: Callable[..., Any], passes: int, *, before: bool) -> Callable[..., Any]:
    """``function`` that dies before or after its call number ``passes``, counted from 0."""
    calls = 0

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if before and calls > passes:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if calls > passes:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapper


# The class and method to die at, and whether before its call.
POINTS: Final[dict[str, tuple[type, str, bool]]] = {
    "before the registry's entries": (Outbox, "publish_entries", True),
    "between the registry's entries and their effect": (Outbox, "publish_entries", False),
    "between two events of a fragment": (KafkaPublisher, "publish", True),
    "after a fragment is queued": (Outbox, "publish_fragment", False),
    "before a confirmed fragment is noted": (CaptureSource, "_handle_published", True),
    "before a status update": (ReplicationStream, "send", True),
    "after a status update": (ReplicationStream, "send", False),
}

if __name__ == "__main__":
    owner, name, dies_before = POINTS[sys.argv[1]]
    setattr(owner, name, _counted(getattr(owner, name), int(sys.argv[2]), before=dies_before))
    sys.exit(main(sys.argv[3:]))
