"""The demo's writers as a process: shape changes in, flush notifications out.

``python -m flushtracker.demo.write_process --config FILE`` runs it on the brokers of capture's configuration, until
SIGTERM or Ctrl-C. After a restart it reports again what it has flushed, and continues from there.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.demo.writers import DemoWriters
from flushtracker.errors import FlushtrackerError
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.records import record_of
from flushtracker.kafka.topic_reader import TopicFollower, TopicReader
from flushtracker.process.program import StopRequest, log_to_stderr, run_program
from flushtracker.shapes.definition import ShapeDefinition

_TICK_S: Final = 0.05


def main() -> int:
    """Run the writers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="capture's configuration")
    log_to_stderr()
    return run_program("writers", partial(_run, parser.parse_args().config), verbose=False)


def _run(config_file: Path) -> int:
    stop = StopRequest(interrupts=False)
    config = load_capture_config(config_file).kafka
    publisher = KafkaPublisher(config)
    with (
        closing(TopicReader(config)) as reader,
        closing(TopicFollower(config, config.topics.shape_changes)) as changes,
        closing(publisher),
    ):
        published = [FlushNotification.from_json(value) for value in reader.values(config.topics.flushes)]
        writers = DemoWriters(partial(_definition, config, reader), published)
        _publish(publisher, config, writers.start())
        while not stop.is_made:
            for value in changes.values(_TICK_S):
                _publish(publisher, config, writers.take(ShapeChangesEvent.from_json(value), _now_ms()))
            _publish(publisher, config, writers.advance(_now_ms()))
            publisher.poll()
        publisher.flush(config.retry_timeout_ms / 1000)
    return 0


def _definition(config: KafkaConfig, reader: TopicReader, source: str, shape_id: str) -> ShapeDefinition:
    """The shape's definition in the registry, where capture writes it before the shape's first change."""
    for value in reader.values(config.topics.shapes):
        entry = parse_registry_entry(value)
        if isinstance(entry, ShapeEntry) and (entry.source, entry.definition.id) == (source, shape_id):
            return entry.definition
    raise FlushtrackerError(
        f"shape {shape_id} of source {source} has changes, but topic {config.topics.shapes} does not define it; "
        "restart the demo"
    )


def _publish(publisher: KafkaPublisher, config: KafkaConfig, events: Iterable[FlushNotification]) -> None:
    for event in events:
        _, key, value = record_of(event)
        publisher.publish(config.topics.flushes, key, value)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


if __name__ == "__main__":
    sys.exit(main())
