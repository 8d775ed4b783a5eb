"""Capture's configuration for a broker and a server that demand TLS, passwords and privileges."""

import uuid
from pathlib import Path
from typing import Final

from tests.support.capture_rig import CaptureRig
from tests.support.certificates import HOST
from tests.support.config_file import merged, write_config
from tests.support.secured_broker import SecuredBroker, User
from tests.support.secured_postgres import SecuredPostgres

FAULTS: Final = ("authority", "host name", "expired", "password")
"""What can be wrong with a connection that is otherwise allowed."""
PASSWORD: Final = f"secret-{uuid.uuid4().hex}"
"""That of capture's role."""
WRONG_PASSWORD: Final = f"secret-{uuid.uuid4().hex}"


class CaptureSettings:
    """The configuration for one user of the broker and the role ``capture``, which can be broken in each way."""

    def __init__(self, rig: CaptureRig, broker: SecuredBroker, user: User) -> None:
        server = rig.server
        assert isinstance(server, SecuredPostgres)
        self._broker, self._server = broker, server
        self.publication: str = rig.settings["capture"]["publication"]
        self._rest = merged(rig.settings, {"capture": {"intervals": {"heartbeat": "200 ms"}}})
        self.kafka = {**rig.settings["kafka"], "bootstrap_servers": broker.servers, "retry_timeout": "60 seconds"}
        self.kafka["options"] = user.options(broker.ca_file)
        self.connection = {
            "host": HOST,
            "port": str(server.port),
            "dbname": "postgres",
            "user": "capture",
            "password": "${CAPTURE_PASSWORD}",
            "sslmode": "verify-full",
            "sslrootcert": str(server.ca_file),
        }

    def break_kafka(self, fault: str) -> None:
        if fault == "authority":
            self.kafka["options"]["ssl.ca.location"] = str(self._broker.other_ca_file)
        elif fault == "host name":
            self.kafka["bootstrap_servers"] = self._broker.servers_by_address
        elif fault == "expired":
            self.kafka["bootstrap_servers"] = self._broker.expired_servers
        else:
            self.kafka["options"]["sasl.password"] = WRONG_PASSWORD

    def break_postgres(self, fault: str) -> None:
        """Break the connection; an expired certificate stays until the caller replaces it."""
        if fault == "authority":
            self.connection["sslrootcert"] = str(self._server.other_ca_file)
        elif fault == "host name":
            self.connection["host"] = "127.0.0.1"
        elif fault == "expired":
            self._server.present_certificate(expired=True)
        else:
            self.connection["password"] = "${WRONG_PASSWORD}"  # noqa: S105  a variable's name

    def write(self, folder: Path) -> Path:
        """Write the file."""
        settings = merged(self._rest, {"capture": {"publication": self.publication}})
        settings |= {"kafka": self.kafka, "postgres": self.connection}
        return write_config(folder / "capture.yaml", settings)
