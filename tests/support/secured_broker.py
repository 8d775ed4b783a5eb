"""A broker that demands TLS, a password and an ACL for everything; and its users."""

import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs lack these exports
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from flushtracker.local.broker import LocalBroker
from tests.support.certificates import HOST, Authority
from tests.support.waiting import wait_until

_TIMEOUT_S: Final = 30
_MECHANISM: Final = "SCRAM-SHA-512"

Acl: TypeAlias = tuple[str, str]
"""Operation and topic, such as ``("READ", "flushtracker.flushes")``; one that ends with ``*`` stands for a prefix."""


@dataclass(frozen=True)
class User:
    """A SCRAM user of the broker."""

    name: str
    password: str

    def options(self, ca_file: Path) -> dict[str, str]:
        """The options of librdkafka for this user."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": _MECHANISM,
            "sasl.username": self.name,
            "sasl.password": self.password,
            "ssl.ca.location": str(ca_file),
        }

    def java_options(self, ca_file: Path) -> dict[str, str]:
        """The options of Spark's Kafka source for this user."""
        login = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": _MECHANISM,
            "kafka.sasl.jaas.config": f'{login} required username="{self.name}" password="{self.password}";',
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(ca_file),
        }


class SecuredBroker:
    """A broker with a listener for users, one with an expired certificate, and an open one for the test itself.

    ``ca_file`` is the authority that signed its certificates, ``other_ca_file`` another one. A context manager.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority("the broker's CA")
        self.ca_file, self.other_ca_file = folder / "ca.pem", folder / "other_ca.pem"
        self.ca_file.write_text(authority.certificate)
        self.other_ca_file.write_text(Authority("another CA").certificate)
        self._ports = {name: _free_port() for name in ("SECURED", "EXPIRED")}
        own = ",".join(f"{name}://{HOST}:{port}" for name, port in self._ports.items())
        settings = {
            "listeners": f"CLIENTS://{{host}}:{{port}},CONTROLLER://{{host}}:{{controller_port}},{own}",
            "advertised.listeners": f"CLIENTS://{{host}}:{{port}},{own}",
            "listener.security.protocol.map": (
                "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_SSL,EXPIRED:SASL_SSL"
            ),
            "sasl.enabled.mechanisms": _MECHANISM,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Whoever comes through the open listener, the broker itself included.
            "super.users": "User:ANONYMOUS",
        }
        for name in self._ports:
            key_file = folder / f"{name.lower()}.pem"
            key_file.write_text("".join(authority.issue(expired=name == "EXPIRED")))
            prefix = f"listener.name.{name.lower()}"
            settings[f"{prefix}.ssl.keystore.type"] = "PEM"
            settings[f"{prefix}.ssl.keystore.location"] = str(key_file)
            settings[f"{prefix}.{_MECHANISM.lower()}.sasl.jaas.config"] = (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            )
        self._broker = LocalBroker(folder / "broker", settings=settings)

    def __enter__(self) -> "SecuredBroker":
        self._broker.start()
        self._admin = AdminClient({"bootstrap.servers": self.open_servers, "log_level": 0})
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.stop()

    @property
    def open_servers(self) -> str:
        """Where the test itself connects, as superuser without a password."""
        return self._broker.bootstrap_servers

    @property
    def servers(self) -> str:
        return f"{HOST}:{self._ports['SECURED']}"

    @property
    def servers_by_address(self) -> str:
        """The same listener, under a name that its certificate does not have."""
        return f"127.0.0.1:{self._ports['SECURED']}"

    @property
    def expired_servers(self) -> str:
        return f"{HOST}:{self._ports['EXPIRED']}"

    def create_user(self, acls: Iterable[Acl] = ()) -> User:
        """A new user with these ACLs alone; the broker has learned of both when this returns."""
        user = User(f"user-{uuid.uuid4().hex[:8]}", f"secret-{uuid.uuid4().hex}")
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        new = UserScramCredentialUpsertion(user.name, info, user.password.encode())
        self._admin.alter_user_scram_credentials([new])[user.name].result(_TIMEOUT_S)
        wait_until(lambda: user.name in self._users(), f"the password of {user.name}", _TIMEOUT_S)
        bindings = {_binding(user, acl) for acl in acls}
        for future in self._admin.create_acls([*bindings]).values() if bindings else ():
            future.result(_TIMEOUT_S)
        wait_until(lambda: bindings <= {*self._acls(user)}, f"the ACLs of {user.name}", _TIMEOUT_S)
        return user

    def _acls(self, user: User) -> list[AclBinding]:
        any_of_user = AclBindingFilter(
            *(ResourceType.TOPIC, None, ResourcePatternType.ANY, f"User:{user.name}"),  # type: ignore[arg-type]  # its stubs are wrong
            *("*", AclOperation.ANY, AclPermissionType.ALLOW),
        )
        found: list[AclBinding] = self._admin.describe_acls(any_of_user).result(_TIMEOUT_S)
        return found

    def _users(self) -> Mapping[str, object]:
        """Those with a password, by name."""
        found: Any = self._admin.describe_user_scram_credentials()
        users: Mapping[str, object] = found.result(_TIMEOUT_S)
        return users


def _binding(user: User, acl: Acl) -> AclBinding:
    operation, topic = acl
    pattern = ResourcePatternType.PREFIXED if topic.endswith("*") else ResourcePatternType.LITERAL
    return AclBinding(
        *(ResourceType.TOPIC, topic.rstrip("*"), pattern, f"User:{user.name}"),
        *("*", AclOperation[operation], AclPermissionType.ALLOW),
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
