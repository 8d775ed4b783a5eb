"""Capture with a real server and a real broker: its configuration, its process or thread, and its output."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, Protocol

import yaml

from flushtracker.capture.capture_config import CaptureConfig, load_capture_config
from flushtracker.capture.capture_loop import CaptureLoop
from flushtracker.capture.source.prior_state import last_entries
from flushtracker.events.registry_events import (
    PartitionEntry,
    ShapeEntry,
    TableEntry,
    bound_now,
    parse_registry_entry,
)
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.events.topic_rules import ROLES, SNAPSHOT_ROLES
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shape_log.shape_chain import chain_position, cursor_after, new_items
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import parse_lsn
from tests.support.brokers import Broker
from tests.support.config_file import write_config
from tests.support.waiting import wait_until

DEADLINE_S: Final = 30.0
ROOT: Final = Path(__file__).parents[2]
SLOT: Final = "shapes"
USERS: Final = "CREATE TABLE users (id serial PRIMARY KEY, region text)"
INSERT_USER: Final = "INSERT INTO users (region) VALUES ('eu')"


@dataclass
class RunningCapture:
    """Capture in a thread of the test process."""

    loop: CaptureLoop
    stop_event: Event
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:  # noqa: BLE001  kept for the test to inspect
            self.error = error

    def stop(self) -> None:
        """Stop capture; raise its error if it has failed."""
        self.stop_event.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error

    def failure(self) -> str:
        """Wait until capture fails, and return its error as text."""
        self.thread.join(DEADLINE_S)
        assert self.error is not None
        return f"{type(self.error).__name__}: {self.error}"


@dataclass
class _ReadTopic:
    """What was read of a topic: its values, and by partition its first Kafka offset and the next one to read."""

    begins: dict[int, int]
    ends: dict[int, int] = field(default_factory=dict)
    values: list[bytes] = field(default_factory=list)


class CaptureRig:
    """A server, topics on a broker, and capture's files in ``folder``."""

    def __init__(self, server: LocalPostgres, bootstrap_servers: str, folder: Path, topic_name: Callable[[str], str]):
        folder.mkdir(exist_ok=True)
        self.server = server
        self.folder = folder
        self.config_file = folder / "capture.yaml"
        self.shapes_file = folder / "shapes.yaml"
        self.acks = folder / "acks"
        self.settings: dict[str, Any] = {
            "postgres": dict(server.options),
            "kafka": {
                "bootstrap_servers": bootstrap_servers,
                "topic_prefix": topic_name("rig"),
                "partitions": 2,
                "replication_factor": 1,
                "retry_timeout": "120 seconds",
            },
            "storage": str(folder),
            "shapes": str(self.shapes_file),
            "capture": {
                "slot": SLOT,
                "publication": "shapes",
                "intervals": {"status": "50 ms", "acks": "50 ms", "keepalive": "200 ms", "shapes": "50 ms"},
            },
            "status": False,
        }
        self.define()
        self._reader: TopicReader | None = None
        self._ack_table: AckTable | None = None
        self._read: dict[str, _ReadTopic] = {}
        # A test that waits for an event looks at all those before it again and again.
        self._fragment = cache(FragmentEvent.from_json)
        self._shape_changes = cache(ShapeChangesEvent.from_json)
        self._captures: list[RunningCapture] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def config(self) -> CaptureConfig:
        return load_capture_config(write_config(self.config_file, self.settings))

    @property
    def topics(self) -> dict[str, str]:
        """The topic of each role; those of snapshots only if these are published."""
        prefix = self.settings["kafka"]["topic_prefix"]
        has_snapshots = self.settings.get("snapshot", {}).get("into") == "kafka"
        return {role: f"{prefix}.{role}" for role in (*ROLES, *(SNAPSHOT_ROLES if has_snapshots else ()))}

    def define(self, *shapes: dict[str, Any], **keys: object) -> None:
        """Replace the shapes file, with further ``keys``, by a rename, so that capture never reads half of it."""
        new = self.shapes_file.with_suffix(".new")
        new.write_text(yaml.safe_dump({"shapes": list(shapes), **keys}))
        new.rename(self.shapes_file)

    def create(self) -> None:
        """Create the topics, the publication and the slot."""
        self.create_topics()
        self.server.execute(
            "CREATE PUBLICATION shapes FOR ALL TABLES",
            "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
        )

    def create_with_users(self) -> None:
        """As :meth:`create`, with one table and one shape on it."""
        self.create()
        self.server.execute(USERS)
        self.define(shape("users"))

    def create_topics(self) -> None:
        TopicAdmin(self.config.kafka).create(ROLES)

    def refusal(self) -> str:
        """Start capture, and return why it refuses an entry of its shapes file; the others are taken."""
        capture = self.start()
        self.wait(lambda: capture.loop.status().refused, "a refused entry")
        capture.stop()
        return capture.loop.status().refused[0].reason

    def start(
        self,
        *,
        new_epoch: bool = False,
        upgraded_from: str | None = None,
        before_upgrade: bool = False,
        waits: bool = False,
    ) -> RunningCapture:
        """Start capture in a thread."""
        stop = Event()
        loop = CaptureLoop(
            *(self.config, stop),
            new_epoch=new_epoch,
            upgraded_from=upgraded_from,
            before_upgrade=before_upgrade,
            waits=waits,
        )
        capture = RunningCapture(loop, stop)
        self._captures.append(capture)
        return capture

    def capture_once(self, *statements: str, acknowledges: bool = False, **how: Any) -> None:
        """Capture what the statements change, a row of ``users`` if there are none, and stop."""
        capture = self.start(**how)
        self.execute_and_wait(*(statements or [INSERT_USER]))
        if acknowledges:
            self.acknowledge_all()
        capture.stop()

    def start_process(self, module: str = "flushtracker", *arguments: str) -> subprocess.Popen[bytes]:
        """Start capture in a separate process that logs to ``capture.log``."""
        assert self.config
        command = [sys.executable, "-m", module, *(arguments or ["capture"]), "--config", str(self.config_file)]
        with (self.folder / "capture.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
        self._processes.append(process)
        return process

    def start_created(self, *options: str) -> subprocess.Popen[bytes]:
        """Start ``capture --create`` in a separate process, and wait until it captures."""
        before = self.log().count("capturing source=")
        process = self.start_process("flushtracker", "capture", "--create", *options)
        self.wait(lambda: process.poll() is not None or self.log().count("capturing source=") > before, "capture")
        assert process.poll() is None, self.log()
        return process

    def close(self) -> None:
        """Stop every capture and kill every process that still runs."""
        for capture in self._captures:
            capture.stop_event.set()
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_S)
        for capture in self._captures:
            capture.thread.join(DEADLINE_S)
            assert not capture.thread.is_alive()
        if self._reader is not None:
            self._reader.close()

    def log(self) -> str:
        path = self.folder / "capture.log"
        return path.read_text() if path.exists() else ""

    def values(self, role: str) -> list[bytes]:
        """All values that the role's topic holds now, but for those that only a compaction has removed."""
        if self._reader is None:
            self._reader = TopicReader(self.config.kafka)
        topic = self.topics[role]
        begins, read = self._reader.begins(topic), self._read.get(topic)
        if read is None or read.begins != begins:
            read = self._read[topic] = _ReadTopic(begins)
        values, read.ends = self._reader.since(topic, read.ends)
        read.values += values
        return list(read.values)

    def fragments(self) -> list[FragmentEvent]:
        return [self._fragment(value) for value in self.values("fragments")]

    def changes(self) -> list[ShapeChangesEvent]:
        return [self._shape_changes(value) for value in self.values("shape_changes")]

    def items(self, shape_id: str) -> list[LogItem]:
        """The items that a shape's writer stores: in order, and each one once even if it was sent again."""
        changes = [part for part in self.changes() if part.shape_id == shape_id]
        items = {item.offset: item for part in changes for item in part.items}
        assert_chained(changes)
        return [items[offset] for offset in sorted(items)]

    def operations(self, shape_id: str) -> list[str]:
        return [item.operation for item in self.items(shape_id)]

    def removals(self) -> dict[str, FlushNotification]:
        events = [FlushNotification.from_json(value) for value in self.values("flushes")]
        return {event.shape_id: event for event in events if event.type == "removed"}

    def registry(self) -> dict[str, ShapeEntry]:
        entries = [parse_registry_entry(value) for value in self.values("shapes")]
        return {entry.definition.id: entry for entry in entries if isinstance(entry, ShapeEntry)}

    def partitions(self, table: str) -> set[str]:
        """The names of a table's partitions whose changes are routed as the table's, by the registry."""
        entries = last_entries(self.values("shapes"))
        (own,) = (e for e in entries if isinstance(e, TableEntry) and ".".join(e.binding.table) == table)
        later = [e for e in entries if isinstance(e, PartitionEntry) and e.table_oid == own.binding.oid]
        not_joined = {e.binding.oid for e in later if e.joined is None}
        partitions = bound_now(own.binding, later).partitions
        return {".".join(partition.table) for partition in partitions if partition.oid not in not_joined}

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
        """Wait until ``condition`` holds; raise the error of the last capture if it fails first."""

        def holds_or_failed() -> bool:
            if self._captures and self._captures[-1].error is not None:
                raise self._captures[-1].error
            return bool(condition())

        wait_until(holds_or_failed, what, timeout_s)

    def commit_lsn(self, *statements: str) -> int:
        """Run the statements; return an LSN at or past their commits."""
        ((lsn,),) = self.server.execute(*statements, "SELECT pg_current_wal_insert_lsn()::text")
        return parse_lsn(lsn)

    def wait_for_commits(self, lsn: int, timeout_s: float = DEADLINE_S) -> None:
        """Wait until the fragments reach ``lsn``, by a commit or a keepalive."""
        self.wait(lambda: any(event.lsn >= lsn - 1 for event in self.fragments()), f"fragments up to {lsn}", timeout_s)

    def execute_and_wait(self, *statements: str) -> None:
        """Execute the statements and wait until all their changes are published."""
        self.wait_for_commits(self.commit_lsn(*statements))

    def source(self) -> str:
        """The source of the capture that was started last."""
        source = self._captures[-1].loop.source
        assert source is not None
        return source

    def source_of_fragments(self) -> str:
        """The source of all fragments; there must be exactly one."""
        (source,) = {event.source for event in self.fragments()}
        return source

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def acknowledge(self, ack_lsn: int) -> None:
        """Append an ack for the current source, as the tracker does."""
        if self._ack_table is None:
            self._ack_table = AckTable(str(self.acks))
            self._ack_table.fence_others()
        self._ack_table.append(AckRow(self.source(), 0, ack_lsn, ack_lsn, 0, None, None, self.now()))

    def acknowledge_all(self) -> int:
        """Acknowledge the last commit, and wait until the slot's ``confirmed_flush_lsn`` is past it."""
        ack_lsn = max(event.lsn for event in self.fragments())
        self.acknowledge(ack_lsn)
        self.wait(lambda: self.confirmed_lsn() == ack_lsn + 1, f"the slot at {ack_lsn + 1}")
        return ack_lsn

    def confirmed_lsn(self) -> int:
        query = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{SLOT}'"  # noqa: S608
        ((lsn,),) = self.server.execute(query)
        return parse_lsn(lsn)


class RigOn(Protocol):
    """The fixture ``rig_on``."""

    def __call__(self, server: LocalPostgres, name: str = "", broker: Broker = ...) -> CaptureRig: ...


def shape(shape_id: str, table: str = "public.users", **fields: object) -> dict[str, Any]:
    """A shape as the shapes file defines it."""
    return {"id": shape_id, "table": table, **fields}


def run_in_transaction(server: LocalPostgres, statements: Sequence[str]) -> None:
    """Run all statements in one transaction."""
    connection = server.connect()
    try:
        with connection.transaction(), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    finally:
        connection.close()


def assert_chained(changes: Iterable[ShapeChangesEvent]) -> None:
    """Assert that a writer who goes by the chain of each shape finds no gap, and takes every item once."""
    cursors: dict[tuple[str, str], LogOffset] = {}
    taken: list[tuple[str, str, LogOffset]] = []
    sent: set[tuple[str, str, LogOffset]] = set()
    for event in changes:
        shape = event.source, event.shape_id
        cursor = cursors.get(shape)
        position = chain_position(event, cursor)
        assert position != "gap", f"{shape}: {event.follows} -> {event.last_log_offset} at {cursor}"
        sent.update((*shape, item.offset) for item in event.items)
        if position == "next":
            taken += [(*shape, item.offset) for item in new_items(event, cursor)]
            cursors[shape] = cursor_after(event)
    assert sorted(taken) == sorted(sent)
