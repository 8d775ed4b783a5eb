"""``flushtracker`` that publishes snapshots as small events, with a pause after each; a number follows its arguments.

After so many events with rows it stands still, to be killed in the middle of an attempt; after ``0`` never.
"""

import sys
import time
from itertools import count
from typing import Final

from flushtracker.cli import run
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.shape_log.snapshot import published_attempt

_PAUSE_S: Final = 0.02

numbers = count(1)


def slow_publish(publisher: KafkaPublisher, topic: str, key: str, value: str) -> None:
    """Publish, and let the broker have it at once."""
    publish(publisher, topic, key, value)
    publisher.flush(10)
    time.sleep(_PAUSE_S)
    if SnapshotEvent.from_json(value).rows and next(numbers) == int(sys.argv[-1]):
        while True:
            time.sleep(60)


publish = KafkaPublisher.publish

if __name__ == "__main__":
    published_attempt.CHARACTERS_PER_EVENT = 300  # type: ignore[misc]
    KafkaPublisher.publish = slow_publish  # type: ignore[method-assign,assignment]
    run(sys.argv[1:-1])
