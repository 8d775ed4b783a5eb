"""Snapshots for writers of other storages: ``python -m tests.bench.bench_published [ROWS]``.

One shape with all rows of a table, read and published by one process, to a real broker on the same machine. CPU and
memory are those of that process alone; the server and the broker work beside it.
"""

import argparse
import resource
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event

from flushtracker.config.postgres_config import TablesConfig
from flushtracker.config.secret_options import SecretOptions
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.jobs.snapshot.kafka_snapshots import KafkaSnapshots
from flushtracker.jobs.snapshot.loop import SnapshotLoop
from flushtracker.jobs.snapshot.publish_config import PublishConfig
from flushtracker.kafka.kafka_config import KafkaConfig, Topics
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.records import record_of
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.postgres.snapshot_export import primary_server
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.bench.bench_snapshot import ORDERS, ROWS, TABLE


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_published")
    parser.add_argument("rows", nargs="?", type=int, default=500_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with LocalPostgres(folder / "server") as server, LocalBroker(folder / "broker") as broker:
            server.execute(*TABLE, ROWS % (1, rows), "VACUUM ANALYZE orders", "CHECKPOINT")
            topics = Topics("fragments", "flushes", "shapes", "changes", "snapshots", "taken")
            kafka = KafkaConfig(broker.bootstrap_servers, topics, replication_factor=1)
            TopicAdmin(kafka).create(topics.by_role())
            _register(server, kafka)
            config = PublishConfig(TablesConfig(SecretOptions(server.options), "shapes"), kafka)
            started, cpu_s = time.perf_counter(), time.process_time()
            with closing(KafkaSnapshots(config)) as store:
                SnapshotLoop(store, config, Event(), (), again=False).run()
            seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    sys.stdout.write(
        f"{rows:,} rows: {seconds:.1f} s, {rows / seconds:,.0f} rows/s, {cpu_s:.1f} s CPU, "
        f"{rows / cpu_s:,.0f} rows/CPU s, at most {memory_mb:,.0f} MB\n"
    )


def _register(server: LocalPostgres, kafka: KafkaConfig) -> None:
    """Publish the registry's entries of one shape, as capture does."""
    server.execute(
        "CREATE PUBLICATION shapes FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
    )
    with closing(server.connect()) as connection:
        source = f"{primary_server(connection)}/shapes"
        ((definition, binding),) = ServerTables(connection, "shapes").resolve([ShapeDefinition("all", ORDERS)])
    definition = replace(definition, snapshot=True, writer="own")
    shape = ShapeEntry(source, definition, binding.oid, LogOffset(1, 0), starts_visible=True)
    with closing(KafkaPublisher(kafka)) as publisher:
        for entry in (TableEntry(source, binding), shape):
            record = record_of(entry)
            publisher.publish(kafka.topics.shapes, record.key, record.value)
        publisher.flush(30)


if __name__ == "__main__":
    main()
