"""``flushtracker capture`` that sends itself SIGKILL at a chosen point.

``python -m tests.support.killed_capture POINT N --config FILE``: POINT is a key of ``POINTS`` or
``PUBLICATION_POINTS``, and N is how often it is passed before the kill.
"""

import os
import signal
import sys
from typing import Final

from flushtracker.capture.source.captured_source import CapturedSource
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.cli import run
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.postgres.publication import Publication
from flushtracker.postgres.replication_stream import ReplicationStream
from tests.support.kill_points import KillPoints, arm


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


PUBLICATION_POINTS: Final[KillPoints] = {
    "before the publication is altered": (Publication, "_alter", True),
    "between the publication and the registry": (Publication, "_alter", False),
}
"""They are passed only if the publication is managed."""
POINTS: Final[KillPoints] = {
    "before the registry's entries": (Outbox, "publish_entries", True),
    "between the registry's entries and their effect": (Outbox, "publish_entries", False),
    "between two events of a fragment": (KafkaPublisher, "publish", True),
    "after a fragment is queued": (Outbox, "publish_fragment", False),
    "before a confirmed fragment is recorded": (CapturedSource, "_handle_published", True),
    "before a status update": (ReplicationStream, "send", True),
    "after a status update": (ReplicationStream, "send", False),
}

if __name__ == "__main__":
    arm(POINTS | PUBLICATION_POINTS, sys.argv[1], int(sys.argv[2]), _die)
    run(["capture", *sys.argv[3:]])
