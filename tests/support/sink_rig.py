"""``SinkRig``: `flushtracker sink` as a process, and groups that read its topic, beside capture and snapshots."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs lack these exports
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from flushtracker.events.snapshot_events import SnapshotEnd
from tests.support.capture_loop_parts import Tracker
from tests.support.capture_rig import shape
from tests.support.config_file import write_config
from tests.support.published_snapshots import PublishingRig
from tests.support.sink_group import SinkGroup

PARTITIONS: Final = 3
USERS: Final = (
    "CREATE TABLE users (id int PRIMARY KEY, region text, name text)",
    "ALTER TABLE users REPLICA IDENTITY FULL",
    "INSERT INTO users SELECT n, CASE WHEN n % 3 = 0 THEN 'eu' END, 'user ' || n FROM generate_series(1, 10) n",
)


class SinkRig:
    """Shape ``eu`` of table ``users`` in a topic that ``groups`` read."""

    def __init__(self, publishing: PublishingRig, groups: tuple[str, ...]) -> None:
        self.rig, self._publishing = publishing.rig, publishing
        self.topic = f"{self.rig.settings['kafka']['topic_prefix']}.public.users"
        self.log_file = self.rig.folder / "sink.log"
        self.kafka: dict[str, object] = {}
        """The program's own keys of ``kafka``."""
        self.groups = [self.new_group(name) for name in groups]
        self._file = self.configure(groups)
        self._process: subprocess.Popen[bytes] | None = None
        self.capture = self.rig.start()

    def configure(self, groups: tuple[str, ...], **keys: object) -> Path:
        topics = {"eu": {"topic": self.topic, "groups": list(groups), "partitions": PARTITIONS}}
        sink = {"topics": topics, "poll": "50 ms", "name": "app", **keys}
        kafka = {**self.rig.settings["kafka"], **self.kafka}
        return write_config(self.rig.folder / "sink.yaml", {**self.rig.settings, "kafka": kafka, "sink": sink})

    def new_group(self, name: str) -> SinkGroup:
        servers = self.rig.settings["kafka"]["bootstrap_servers"]
        return SinkGroup(servers, name, self.topic, PARTITIONS)

    def define(self, **fields: object) -> None:
        """Define the shape, and wait until its snapshot could be taken."""
        self.rig.define(
            shape("eu", "public.users", where="region = 'eu'", writer="kafka", **{"replica": "full", **fields})
        )

        def is_ready() -> bool:
            entry = self.rig.registry().get("eu")
            return entry is not None and (entry.starts_visible or not entry.definition.snapshot)

        self.rig.wait(is_ready, "the shape")

    def take_snapshot(self) -> SnapshotEnd:
        self._publishing.take("eu")
        end, _ = self._publishing.snapshot("eu")
        assert end is not None
        assert end.end is not None
        return end.end

    def start(self, *, waits: bool = True) -> "subprocess.Popen[bytes]":
        before = self.fed()
        with self.log_file.open("ab") as log:
            command = [sys.executable, "-m", "flushtracker", "sink", "--config", str(self._file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        if waits:
            self.rig.wait(lambda: self.is_running() and self.fed() > before, "a fed shape", 60)
        return self._process

    def delete_records(self) -> None:
        """Delete all records of the topic, as retention does."""
        admin = AdminClient({"bootstrap.servers": self.rig.settings["kafka"]["bootstrap_servers"]})
        everything = [TopicPartition(self.topic, number, OFFSET_END) for number in range(PARTITIONS)]
        for future in admin.delete_records(everything).values():
            future.result(60)

    def set(self, topic: str, name: str, value: str) -> None:
        """Alter a setting of a topic."""
        admin = AdminClient({"bootstrap.servers": self.rig.settings["kafka"]["bootstrap_servers"]})
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(60)

    def delete_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.rig.settings["kafka"]["bootstrap_servers"]})
        for future in admin.delete_topics([self.topic]).values():
            future.result(60)

    def fed(self) -> int:
        """How often the program has begun to feed the shape."""
        return self.log().count("feeding shape shape_id=eu")

    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def is_running(self) -> bool:
        """Fails with the log if the program has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        return True

    def exit_code(self) -> int:
        assert self._process is not None
        return self._process.wait(60)

    def kill(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def close(self) -> None:
        self.kill()
        for group in self.groups:
            group.kill()

    def truth(self) -> dict[str, dict[str, Any]]:
        """The rows of the shape's query, by the keys of their records."""
        rows = self.rig.server.execute("SELECT id, region, name FROM users WHERE region = 'eu'")
        return {f'{{"id":{row[0]}}}': {"id": row[0], "region": row[1], "name": row[2]} for row in rows}


class SinkJudge:
    """Compares the stores with what the slot has confirmed, by what capture has sent."""

    def __init__(self, sink: SinkRig, snapshot: SnapshotEnd | None) -> None:
        self._sink, self._snapshot = sink, snapshot
        self.tracker = Tracker(sink.rig)

    def due(self) -> dict[int, set[tuple[int, int]]]:
        """By transaction, the changes that each store must have before it is confirmed."""
        found: dict[int, set[tuple[int, int]]] = {}
        for event in self._sink.rig.changes():
            tx = event.last_log_offset.tx_offset
            if self._snapshot is None or not self._snapshot.contained.contains(tx, event.xid):
                found.setdefault(tx, set()).update((tx, item.offset.op_offset) for item in event.items)
        return found

    def check(self) -> None:
        """No store lacks what is confirmed."""
        self.tracker.step()
        confirmed, due = self._sink.rig.confirmed_lsn(), self.due()
        for group in self._sink.groups:
            missing = [tx for tx, offsets in due.items() if tx < confirmed and not offsets <= set(group.stored)]
            assert not missing, f"{confirmed} is confirmed, but {group.name} lacks {missing}"

    def finish(self) -> None:
        """All groups read to the end; then the slot passes it, and every store has the rows of the query."""

        def is_confirmed() -> bool:
            self._sink.is_running()
            for group in self._sink.groups:
                group.step()
            self.check()
            return self._sink.rig.confirmed_lsn() > max(self.due())

        self._sink.rig.wait(is_confirmed, "the slot past the last change", 120)
        for group in self._sink.groups:
            assert group.rows == self._sink.truth()
            assert set(group.stored) == set[tuple[int, int]]().union(*self.due().values())
