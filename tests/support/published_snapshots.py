"""Snapshots on a broker's topics beside a capture: the job's configuration, and what a writer makes of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

from flushtracker.events.snapshot_events import SnapshotEvent, SnapshotRow
from flushtracker.events.topic_rules import SNAPSHOT_ROLES
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shape_log.snapshot.kafka_snapshots import KafkaSnapshots
from flushtracker.shape_log.snapshot.loop import SnapshotLoop
from flushtracker.shape_log.snapshot.publish_config import PublishConfig, load_publish_config
from flushtracker.shape_log.snapshot_reader import SnapshotReader
from flushtracker.wal.changes import Row
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig
from tests.support.config_file import merged, write_config


class PublishingRig:
    """Adds the topics of snapshots to those of a capture that is not created yet."""

    def __init__(self, rig: CaptureRig) -> None:
        rig.settings["snapshot"] = {"into": "kafka"}
        TopicAdmin(rig.config.kafka).create(SNAPSHOT_ROLES)
        self.rig = rig
        self._file = rig.folder / "publish_snapshots.yaml"

    def config_file(self, **snapshot: object) -> Path:
        """The job's configuration, with further keys of ``snapshot``."""
        return write_config(self._file, merged(self.rig.settings, {"snapshot": snapshot}))

    def config(self, **snapshot: object) -> PublishConfig:
        config = load_publish_config(self.config_file(**snapshot))
        assert config is not None
        return config

    def take(self, *shape_ids: str, again: bool = False, **keys: object) -> None:
        """Run the job once, in this process."""
        config = self.config(**keys)
        with closing(KafkaSnapshots(config)) as store:
            SnapshotLoop(store, config, Event(), shape_ids, again=again).run()

    def events(self) -> list[SnapshotEvent]:
        return [SnapshotEvent.from_json(value) for value in self.rig.values("snapshots")]

    def last_attempt(self) -> int:
        return max((event.attempt for event in self.events()), default=0)

    def is_within_an_attempt_after(self, attempt: int) -> bool:
        """Whether a later attempt has begun, has rows, and has not ended."""
        last = self.last_attempt()
        events = [event for event in self.events() if event.attempt == last > attempt]
        return any(event.rows for event in events) and all(event.end is None for event in events)

    def snapshot(self, shape_id: str) -> tuple[SnapshotEvent | None, list[SnapshotRow]]:
        """The last event of the shape's complete attempt, and its rows, as a writer reads them."""
        return complete_snapshot([event for event in self.events() if event.shape_id == shape_id])

    def rows(self, shape_id: str) -> list[Row]:
        """The rows of the shape's complete snapshot, in the order of their keys."""
        end, rows = self.snapshot(shape_id)
        assert end is not None
        assert end.end is not None
        assert end.end.rows == len(rows) == len({row.key for row in rows})
        return [row.value for row in sorted(rows, key=lambda row: row.key)]


@contextmanager
def publishing_rig(
    server: LocalPostgres, broker: Broker, folder: Path, topic_name: Callable[[str], str], tables: Sequence[str]
) -> Iterator[PublishingRig]:
    """A server with these tables, and a capture that is not started yet."""
    server.execute(*tables)
    rig = CaptureRig(server, broker.bootstrap_servers, folder, topic_name)
    rig.create()
    try:
        yield PublishingRig(rig)
    finally:
        rig.close()


def complete_snapshot(events: list[SnapshotEvent]) -> tuple[SnapshotEvent | None, list[SnapshotRow]]:
    """What a writer has of one shape after these events."""
    reader, rows = SnapshotReader(), dict[int, list[SnapshotRow]]()
    for event in events:
        if reader.take(event) == "ignored":
            continue
        rows.setdefault(event.attempt, []).extend(event.rows)
        kept = reader.attempts(event.source, event.shape_id)
        rows = {attempt: found for attempt, found in rows.items() if attempt in kept}
    end = reader.complete(events[0].source, events[0].shape_id) if events else None
    return end, [] if end is None else rows[end.attempt]
