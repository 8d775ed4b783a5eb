"""``python -m flushtracker.trials.warmup.sample_run FOLDER BOOTSTRAP``: runs both jobs in one JVM on a few events.

They run twice; the second run starts from a checkpoint.
"""

import os
import sys
from pathlib import Path
from typing import Final

from flushtracker.cli import main
from flushtracker.events.records import record_of
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, FragmentShape, ShapeChangesEvent
from flushtracker.events.topic_rules import ROLES
from flushtracker.kafka.kafka_config import load_kafka_config
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.process.process_end import end_process
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset

_LSNS: Final = (1000, 2000)
_SOURCE: Final = "1/1/warmup"
_SHAPE: Final = "items"
_START: Final = LogOffset(900, 0)
_JOBS: Final = ("write", "track")
_CONFIG: Final = """\
kafka: {{bootstrap_servers: "{servers}", topic_prefix: warmup, partitions: 1, replication_factor: 1}}
storage: tables
status: false
write: {{snapshot: manual, shape_groups: 1, shuffle_partitions: 1, trigger: available_now}}
track: {{shape_groups: 1, shuffle_partitions: 1, trigger: available_now}}
"""


def write_sample_config(folder: Path, bootstrap_servers: str) -> Path:
    """Write the configuration of both jobs; returns its path."""
    file = folder / "flushtracker.yaml"
    file.write_text(_CONFIG.format(servers=bootstrap_servers))
    return file


class SampleStreams:
    """Creates capture's topics; each :meth:`publish` adds a transaction, and the flush of the one before."""

    def __init__(self, config_file: Path) -> None:
        self.config = load_kafka_config(config_file)
        self._topics = self.config.topics.by_role()
        TopicAdmin(self.config).create(ROLES)
        self._follows = _START
        definition = ShapeDefinition(_SHAPE, ("public", "items"), primary_key=("id",), snapshot=False)
        self._publish(ShapeEntry(_SOURCE, definition, 1, _START))

    def publish(self, lsn: int) -> None:
        last = LogOffset(lsn, 0)
        commit = Commit("2026-01-01T00:00:00.000000Z", lsn + 8)
        item = LogItem(last, "insert", '"public"."items"/"1"', {"id": "1"})
        start = self._follows == _START
        self._publish(
            FragmentEvent(
                _SOURCE,
                lsn,
                lsn,
                self._follows,
                last,
                start=start,
                has_begin=True,
                commit=commit,
                shapes=(FragmentShape(_SHAPE, last, 1),),
            ),
            ShapeChangesEvent(
                _SOURCE, _SHAPE, lsn, self._follows, last, start=start, has_begin=True, commit=commit, items=(item,)
            ),
        )
        if not start:
            self._publish(FlushNotification(_SOURCE, "flushed", _SHAPE, self._follows, "log"))
        self._follows = last

    def _publish(self, *events: ShapeEntry | FragmentEvent | ShapeChangesEvent | FlushNotification) -> None:
        publisher = KafkaPublisher(self.config)
        for event in events:
            role, key, value = record_of(event)
            publisher.publish(self._topics[role], key, value)
        publisher.flush(60)
        publisher.close()


def run(folder: Path, bootstrap_servers: str) -> int:
    """Run the jobs; returns the exit code of the first that fails, or 0."""
    os.chdir(folder)
    config = write_sample_config(folder, bootstrap_servers)
    streams = SampleStreams(config)
    for lsn in _LSNS:
        streams.publish(lsn)
        for job in _JOBS:
            if exit_code := main([job, "--config", str(config)]):
                return exit_code
    return 0


if __name__ == "__main__":
    end_process(run(Path(sys.argv[1]), sys.argv[2]))
