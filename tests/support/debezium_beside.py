"""``BesideDebezium``: capture and `flushtracker sink`, and Debezium's own connector beside them, on the same tables."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from tests.support.capture_rig import shape
from tests.support.config_file import write_config
from tests.support.connect_worker import ConnectWorker
from tests.support.published_snapshots import PublishingRig
from tests.support.running_command import RunningCommand
from tests.support.waiting import wait_until

TIMEOUT_S: Final = 120
_PREFIX: Final = "app"
_SLOT: Final = "debezium"
_STREAMING: Final = f"""
SELECT 1 FROM pg_replication_slots JOIN pg_stat_replication ON pid = active_pid
WHERE slot_name = '{_SLOT}' AND state = 'streaming'
"""  # noqa: S608


@dataclass(frozen=True)
class ReadRecord:
    """A record, with its schemas; ``key`` and ``value`` are ``None`` where it has none."""

    key: Any
    value: Any
    headers: tuple[str, ...]


class BesideDebezium:
    """Writes ``tables`` of the schema ``public`` in both ways, each to a topic of one partition, after a snapshot."""

    def __init__(self, publishing: PublishingRig, tables: Sequence[str]) -> None:
        self._publishing, self._rig, self._tables = publishing, publishing.rig, tables
        rig = self._rig
        self._servers = rig.settings["kafka"]["bootstrap_servers"]
        self._worker = ConnectWorker(rig.folder / "connect", self._servers, "beside")
        self._sink: RunningCommand | None = None

    def start(self) -> None:
        """Start both, and wait until both stream."""
        rig, ours = self._rig, {table: self._topic(table, "ours") for table in self._tables}
        rig.start()
        options = {"writer": "kafka", "replica": "full", "snapshot": True}
        rig.define(*(shape(table, f"public.{table}", **options) for table in self._tables))

        def are_visible() -> bool:
            entries = rig.registry().values()
            return len(entries) == len(self._tables) and all(entry.starts_visible for entry in entries)

        rig.wait(are_visible, "the shapes")
        self._publishing.take(*self._tables)
        topics = {table: {"topic": topic, "groups": ["none"], "schemas": True} for table, topic in ours.items()}
        sink = {"topics": topics, "name": _PREFIX, "database": rig.server.options["dbname"]}
        file = write_config(rig.folder / "sink.yaml", {**rig.settings, "sink": sink})
        self._sink = RunningCommand(rig.folder, rig.folder / "sink", "sink", "--config", str(file))
        self._worker.start()
        self._worker.put("debezium", self._connector())
        wait_until(lambda: rig.server.execute(_STREAMING), "Debezium's slot", TIMEOUT_S)

    def close(self) -> None:
        self._worker.stop()
        if self._sink is not None:
            self._sink.kill()

    def theirs(self, table: str, last_key: dict[str, Any]) -> list[ReadRecord]:
        """Its records up to that of ``last_key``."""
        return self._records(self._topic(table, "public"), last_key)

    def ours(self, table: str, last_key: dict[str, Any]) -> list[ReadRecord]:
        return self._records(self._topic(table, "ours"), last_key)

    def _topic(self, table: str, namespace: str) -> str:
        return f"{_PREFIX}.{namespace}.{table}"

    def _connector(self) -> dict[str, str]:
        """As ``docs/kafka_sinks.md`` says, and with truncates."""
        options = self._rig.server.options
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": options["host"],
            "database.port": options["port"],
            "database.user": options["user"],
            "database.password": "none",
            "database.dbname": options["dbname"],
            "topic.prefix": _PREFIX,
            "plugin.name": "pgoutput",
            "slot.name": _SLOT,
            "publication.name": "shapes",
            "publication.autocreate.mode": "disabled",
            "table.include.list": ",".join(f"public.{table}" for table in self._tables),
            "snapshot.mode": "initial",
            "decimal.handling.mode": "string",
            "skipped.operations": "none",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
        }

    def _records(self, topic: str, last_key: dict[str, Any]) -> list[ReadRecord]:
        settings = {"bootstrap.servers": self._servers, "group.id": "read", "enable.auto.commit": False}
        consumer = Consumer({**settings, "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[ReadRecord] = []

        def has_last() -> bool:
            for message in consumer.consume(500, 0.5):
                assert message.error() is None, message.error()
                key, value = message.key(), message.value()
                headers = tuple(dict(message.headers() or []))
                found.append(ReadRecord(json.loads(key or b"null"), json.loads(value or b"null"), headers))
            return any(record.key and record.key["payload"] == last_key for record in found)

        try:
            wait_until(has_last, f"the last record of {topic}", TIMEOUT_S)
        finally:
            consumer.close()
        return found
