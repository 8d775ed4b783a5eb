"""``flushtracker`` that publishes snapshots as small events, with a pause after each; it takes its arguments.

So a kill mostly comes in the middle of an attempt.
"""

import sys
import time
from typing import Final

from flushtracker.cli import main
from flushtracker.jobs.snapshot import published_attempt
from flushtracker.kafka.publisher import KafkaPublisher

_PAUSE_S: Final = 0.02


def slow_publish(publisher: KafkaPublisher, topic: str, key: str, value: str) -> None:
    """Publish, and let the broker have it at once."""
    publish(publisher, topic, key, value)
    publisher.flush(10)
    time.sleep(_PAUSE_S)


publish = KafkaPublisher.publish

if __name__ == "__main__":
    published_attempt.CHARACTERS_PER_EVENT = 300  # type: ignore[misc]
    KafkaPublisher.publish = slow_publish  # type: ignore[method-assign,assignment]
    sys.exit(main(sys.argv[1:]))
