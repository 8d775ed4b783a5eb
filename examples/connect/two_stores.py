"""Kafka Connect with Debezium's JDBC sink on two shapes: ``python -m examples.connect.two_stores``.

The slot waits for both stores. README.md beside this file says what it shows.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from flushtracker.config.config_keys import PROGRAMS
from flushtracker.local.free_ports import free_port, free_ports
from flushtracker.postgres.connection import connect, rows
from flushtracker.wal.lsn import parse_lsn
from tests.support.connect_worker import CONNECT_JARS, ConnectWorker

DEADLINE_S: Final = 300
SHAPES: Final = {
    "orders": "SELECT id, state, amount::text, placed FROM orders WHERE state <> 'draft' ORDER BY id",
    "customers": "SELECT id, name, version FROM customers ORDER BY id",
}
_FLAT: Final = {
    "transforms": "flat",
    "transforms.flat.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.flat.delete.tombstone.handling.mode": "rewrite-with-tombstone",
}
_TABLES: Final = (
    "CREATE TABLE orders (id int PRIMARY KEY, state text, amount numeric(10, 2), placed timestamptz)",
    "CREATE TABLE customers (id int PRIMARY KEY, name text, version int)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "ALTER TABLE customers REPLICA IDENTITY FULL",
    "INSERT INTO orders SELECT n, 'open', n / 7.0, now() FROM generate_series(1, 100) n",
    "INSERT INTO customers SELECT n, 'customer ' || n, 0 FROM generate_series(1, 50) n",
    "CREATE DATABASE store",
)


class TwoStores:
    """PostgreSQL → ``flushtracker up`` → Kafka → Connect → the database ``store``, in ``folder``.

    The sink of ``customers`` gets flat records, that of ``orders`` Debezium's envelope.
    """

    def __init__(self, folder: Path) -> None:
        self.config = folder / "flushtracker.yaml"
        self._folder, self._shapes, port = folder, folder / "shapes.d", free_port()
        self._shapes.mkdir(parents=True)
        self._options = {"host": "localhost", "port": str(port), "user": "capture", "dbname": "shop"}
        broker = f"localhost:{free_port()}"
        topics = {
            shape: {"topic": f"shop.public.{shape}", "partitions": 3, "groups": [f"connect-{shape}"], "schemas": True}
            for shape in SHAPES
        }
        settings = {
            "postgres": f"postgresql://capture@localhost:{port}/shop",
            "kafka": {"bootstrap_servers": broker, "topic_prefix": "shop", "replication_factor": 1},
            "storage": str(folder / "data"),
            "shapes": str(self._shapes),
            "track": {"shuffle_partitions": 1, "shape_groups": 2},
            "write": False,
            "serve": False,
            "snapshot": {"into": "kafka", "trigger": "2 seconds"},
            "sink": {"name": "shop", "database": "shop", "topics": topics},
            "status": {"listen": f"127.0.0.1:{free_ports(len(PROGRAMS))}"},
        }
        self.config.write_text(json.dumps(settings, indent=2))
        self.connect = ConnectWorker(folder / "connect", broker, "connect")
        self._up: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start everything, and wait until both stores have the rows of before."""
        command = [sys.executable, "-m", "flushtracker", "up", "--config", str(self.config)]
        with self.log.open("wb") as log:
            self._up = subprocess.Popen([*command, "--with-kafka", "--with-postgres"], stdout=log, stderr=log)  # noqa: S603
        self.wait(lambda: "everything runs: " in self.log.read_text(), "everything runs")
        self.execute(*_TABLES)
        for shape in SHAPES:
            where = "where: state <> 'draft'\n" if shape == "orders" else ""
            definition = f"id: {shape}\ntable: public.{shape}\nwriter: kafka\nreplica: full\nsnapshot: true\n{where}"
            (self._shapes / f"{shape}.yaml").write_text(definition)
        self.connect.start()
        for shape in SHAPES:
            self.connect.put(shape, self._connector(shape))
        self.wait(lambda: all(map(self.is_equal, SHAPES)), "the stores have the rows of before")

    def _connector(self, shape: str) -> dict[str, str]:
        return {
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "topics": f"shop.public.{shape}",
            "connection.url": f"jdbc:postgresql://localhost:{self._options['port']}/store",
            "connection.username": "capture",
            "connection.password": "none",
            "insert.mode": "upsert",
            "delete.enabled": "true",
            "primary.key.mode": "record_key",
            "schema.evolution": "basic",
            "collection.name.format": shape,
            **(_FLAT if shape == "customers" else {}),
        }

    @property
    def log(self) -> Path:
        return self._folder / "up.log"

    def execute(self, *statements: str, database: str = "shop") -> list[tuple[Any, ...]]:
        """Each is a transaction; returns the rows of the last one."""
        with closing(connect({**self._options, "dbname": database})) as connection:
            return [rows(connection, each) for each in ("SET search_path = public", *statements)][-1]

    def stored(self, query: str) -> list[tuple[Any, ...]]:
        """What the store answers; nothing before Connect has created its tables."""
        ((tables,),) = self.execute("SELECT count(*)::int FROM pg_tables WHERE schemaname = 'public'", database="store")
        return self.execute(query, database="store") if tables == len(SHAPES) else []

    def is_equal(self, shape: str) -> bool:
        """Whether the store has exactly the rows of the shape's query."""
        return self.stored(SHAPES[shape]) == self.execute(SHAPES[shape])

    def written_lsn(self) -> int:
        return parse_lsn(str(self.execute("SELECT pg_current_wal_insert_lsn()")[0][0]))

    def confirmed_lsn(self) -> int:
        return parse_lsn(str(self.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots")[0][0]))

    def status(self) -> str:
        """What ``flushtracker status`` prints."""
        command = [sys.executable, "-m", "flushtracker", "status", "--config", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if self._up is None or self._up.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"not in time: {what}\n{self.log.read_text()[-3000:]}")
            time.sleep(0.2)

    def stop(self) -> None:
        self.connect.kill()
        if self._up is not None:
            self._up.terminate()
            self._up.wait(120)


def main() -> None:
    """Kill Connect, and show that the slot waits for it."""
    CONNECT_JARS.fetch(os.environ)
    folder = Path("data/connect").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    stores = TwoStores(folder)
    try:
        print("starting PostgreSQL, Kafka, flushtracker and Connect; it takes a minute or two", flush=True)
        stores.start()
        print("both stores have the rows of before; killing Connect, and changing rows", flush=True)
        stores.connect.kill()
        stores.execute("UPDATE orders SET state = 'paid' WHERE id <= 10", "DELETE FROM orders WHERE id > 90")
        stores.execute("UPDATE orders SET state = 'draft' WHERE id = 50", "UPDATE customers SET version = 1")
        written = stores.written_lsn()
        stores.wait(lambda: all(f"{shape} waits for connect-{shape}" in stores.status() for shape in SHAPES), "a wait")
        print(stores.status(), flush=True)
        confirmed = stores.confirmed_lsn() >= written
        print(
            f"the slot is {'' if confirmed else 'not '}confirmed past the changes; starting Connect again", flush=True
        )
        stores.connect.start()
        stores.wait(lambda: stores.confirmed_lsn() >= written, "a slot that is confirmed")
        equal = [shape for shape in SHAPES if stores.is_equal(shape)]
        print(f"the slot is confirmed past the changes; the store equals the query for {' and '.join(equal)}")
    finally:
        stores.stop()


if __name__ == "__main__":
    main()
