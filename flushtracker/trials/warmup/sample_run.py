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
from flushtracker.events.topic_rules import ROLES, Topics
from flushtracker.kafka.kafka_config import KafkaConfig
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
_WRITE: Final = """\
source: {{format: kafka, bootstrap_servers: "{servers}", shape_changes: shape_changes, shapes: shapes}}
flushes: {{topic: flushes}}
state: {{checkpoint: write_checkpoint, shape_groups: 1, shuffle_partitions: 1}}
sink: {{log: log, shapes: log_shapes}}
trigger: available_now
"""
_TRACK: Final = """\
source: {{format: kafka, bootstrap_servers: "{servers}", fragments: fragments, flushes: flushes}}
state: {{checkpoint: checkpoint, shape_groups: 1, shuffle_partitions: 1}}
sink: {{acks: acks, dead_letters: dead_letters}}
trigger: available_now
"""


class SampleStreams:
    """Creates capture's topics; each :meth:`publish` adds a transaction, and the flush of the one before."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.config = KafkaConfig(bootstrap_servers, Topics(*ROLES), partitions=1, replication_factor=1)
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
            publisher.publish(role, key, value)
        publisher.flush(60)
        publisher.close()


def run(folder: Path, bootstrap_servers: str) -> int:
    """Run the jobs; returns the exit code of the first that fails, or 0."""
    os.chdir(folder)
    streams = SampleStreams(bootstrap_servers)
    jobs = {"write": _WRITE, "track": _TRACK}
    for name, text in jobs.items():
        Path(f"{name}.yaml").write_text(text.format(servers=bootstrap_servers))
    for lsn in _LSNS:
        streams.publish(lsn)
        for name in jobs:
            if exit_code := main([name, "--config", f"{name}.yaml"]):
                return exit_code
    return 0


if __name__ == "__main__":
    end_process(run(Path(sys.argv[1]), sys.argv[2]))
