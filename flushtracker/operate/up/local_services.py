"""``LocalServices``: the broker and the server of ``flushtracker up --with-kafka`` and ``--with-postgres``.

They listen where the configuration says that they are, which must be this machine, so all other commands find them.
"""

import getpass
from collections.abc import Callable
from pathlib import Path
from typing import Final

from flushtracker.config.one_file import OneFile
from flushtracker.config.postgres_config import read_connection
from flushtracker.config.status_config import StatusConfig
from flushtracker.jvm.jars import BROKER_JARS
from flushtracker.local.broker import LocalBroker
from flushtracker.local.local_server import LocalServer
from flushtracker.local.postgres import LocalPostgres, any_binaries

_HERE: Final = ("localhost", "127.0.0.1")
_POSTGRES_PORT: Final = "5432"
_SERVERS: Final = "kafka.bootstrap_servers"


class LocalServices:
    """Their data is in ``folder`` and stays there. Nothing is started yet; raises ``ConfigError``."""

    def __init__(self, file: OneFile, folder: Path, say: Callable[[str], None], *, kafka: bool, postgres: bool) -> None:
        self._say = say
        self._services: dict[str, LocalServer] = {}
        self._folders: dict[str, Path] = {}
        self._database: str | None = None
        self.addresses: dict[str, StatusConfig] = {}
        """Where they will listen, by the key that says so."""
        if postgres:
            self._add_postgres(file, folder / "postgres")
        if kafka:
            self._add_kafka(file, folder / "kafka")

    def start(self) -> None:
        """Start them in order; raises ``FlushtrackerError``."""
        for name, service in self._services.items():
            self._say(f"starting {name}; its data is kept in {self._folders[name]}")
            self._start(service)

    def check(self) -> None:
        """Restart services that have ended by themselves; raises ``FlushtrackerError``."""
        for name, service in self._services.items():
            if service.has_exited:
                self._say(f"{name} has exited; it is started again")
                service.kill()
                self._start(service)

    def stop(self) -> None:
        """Stop those that run, in the reverse order."""
        for name, service in reversed(self._services.items()):
            if service.is_started:
                self._say(f"stopping {name}")
                service.stop()

    def _start(self, service: LocalServer) -> None:
        service.start()
        if isinstance(service, LocalPostgres) and self._database is not None:
            service.create_database(self._database)

    def _add_postgres(self, file: OneFile, folder: Path) -> None:
        options = read_connection(file)
        user = options.get("user") or getpass.getuser()
        host, port = options.get("host", ""), options.get("port", _POSTGRES_PORT)
        if host not in _HERE or not port.isdigit():
            raise file.root.error("postgres", f"has the host {host!r}; --with-postgres needs {' or '.join(_HERE)}")
        self._database = options.get("dbname") or user
        self._add("PostgreSQL", folder, "postgres", int(port))
        self._services["PostgreSQL"] = LocalPostgres(
            folder, binaries=any_binaries(), settings={"fsync": "on"}, user=user, port=int(port)
        )

    def _add_kafka(self, file: OneFile, folder: Path) -> None:
        servers = file.brokers
        host, _, port = servers.partition(":")
        if host not in _HERE or not port.isdigit():
            raise file.root.error(_SERVERS, f"is {servers!r}; --with-kafka needs one broker, such as localhost:9092")
        if (copies := file.section("kafka").integer("replication_factor", at_least=1)) != 1:
            fact = f"is {copies}, but --with-kafka runs one broker; set it to 1"
            raise file.section("kafka").error("replication_factor", fact)
        BROKER_JARS.fetch()
        self._add("Kafka", folder, _SERVERS, int(port))
        self._services["Kafka"] = LocalBroker(folder, port=int(port))

    def _add(self, name: str, folder: Path, key: str, port: int) -> None:
        self._folders[name] = folder
        self.addresses[key] = StatusConfig(_HERE[1], port)
