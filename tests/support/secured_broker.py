"""A broker that demands TLS, a password and an ACL for everything; and its users."""

import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

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
from tests.support.secret_watch import new_secret
from tests.support.token_endpoint import AUDIENCE, TokenEndpoint
from tests.support.waiting import wait_until

_TIMEOUT_S: Final = 30
_MECHANISM: Final = "SCRAM-SHA-512"

_MECHANISMS: Final = (_MECHANISM, "PLAIN", "OAUTHBEARER")
_USERS: Final = ("SECURED", "EXPIRED")
"""The listeners of users."""
_CERTIFICATES: Final = "CERTIFICATES"
_SECURITY: Final = "org.apache.kafka.common.security"

Acl: TypeAlias = tuple[str, str]
"""Operation and topic, such as ``("READ", "flushtracker.flushes")``; one that ends with ``*`` stands for a prefix.

``group NAME`` and ``transactional_id NAME`` are no topics.
"""


@dataclass(frozen=True)
class User:
    """A user of the broker with a password; SCRAM proves that the client has it."""

    name: str
    password: str
    mechanism: ClassVar[str] = _MECHANISM
    module: ClassVar[str] = "scram.ScramLoginModule"

    def options(self, ca_file: Path) -> dict[str, str]:
        """The options of librdkafka for this user."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.name,
            "sasl.password": self.password,
            "ssl.ca.location": str(ca_file),
        }

    def java_options(self, ca_file: Path) -> dict[str, str]:
        """The options of Spark's Kafka source for this user."""
        login = f'{_SECURITY}.{self.module} required username="{self.name}" password="{self.password}";'
        return {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": self.mechanism,
            "kafka.sasl.jaas.config": login,
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(ca_file),
        }


@dataclass(frozen=True)
class PlainUser(User):
    """A user who sends the password itself."""

    mechanism: ClassVar[str] = "PLAIN"
    module: ClassVar[str] = "plain.PlainLoginModule"


class SecuredBroker:
    """A broker with a listener for users, one with an expired certificate, and an open one for the test itself.

    Users have a password (SCRAM; PLAIN for ``plain_user``) or a token, of the endpoint ``tokens``; at a listener of its
    own, a client has a certificate instead. ``ca_file`` is the authority that signed all certificates,
    ``other_ca_file`` another one. A context manager.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.authority = folder, Authority("the broker's CA")
        self.ca_file, self.other_ca_file = folder / "ca.pem", folder / "other_ca.pem"
        self.ca_file.write_text(self.authority.certificate)
        self.other_ca_file.write_text(Authority("another CA").certificate)
        self.plain_user = PlainUser(f"user-{uuid.uuid4().hex[:8]}", new_secret())
        self._ports = {name: _free_port() for name in (*_USERS, _CERTIFICATES)}
        own = ",".join(f"{name}://{HOST}:{port}" for name, port in self._ports.items())
        protocols = ",".join(f"{name}:SASL_SSL" for name in _USERS)
        settings = {
            "listeners": f"CLIENTS://{{host}}:{{port}},CONTROLLER://{{host}}:{{controller_port}},{own}",
            "advertised.listeners": f"CLIENTS://{{host}}:{{port}},{own}",
            "listener.security.protocol.map": (
                f"CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT,{_CERTIFICATES}:SSL,{protocols}"
            ),
            "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Whoever comes through the open listener, the broker itself included.
            "super.users": "User:ANONYMOUS",
        }
        for name in self._ports:
            key_file = self._key_file(name.lower())
            key_file.write_text("".join(self.authority.issue(expired=name == "EXPIRED")))
            settings |= _certificate_settings(name, key_file)
        # A token must be for the broker, and its connection ends with it unless the client brings another one.
        self.tokens = TokenEndpoint(self._key_file("secured"))
        for name in _USERS:
            settings |= _user_settings(name, self.plain_user, self.tokens, self.ca_file)
        prefix = f"listener.name.{_CERTIFICATES.lower()}"
        settings[f"{prefix}.ssl.client.auth"] = "required"
        settings[f"{prefix}.ssl.truststore.type"] = "PEM"
        settings[f"{prefix}.ssl.truststore.location"] = str(self.ca_file)
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.tokens.keys_url}"
        self._broker = LocalBroker(folder / "broker", settings=settings, jvm_options=[allowed])

    def _key_file(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def __enter__(self) -> "SecuredBroker":
        self.tokens.__enter__()
        self._broker.start()
        self._admin = AdminClient({"bootstrap.servers": self.open_servers, "log_level": 0})
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.stop()
        self.tokens.__exit__()

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
    def servers_for_certificates(self) -> str:
        """The listener at which a client has a certificate, and no user."""
        return f"{HOST}:{self._ports[_CERTIFICATES]}"

    @property
    def expired_servers(self) -> str:
        return f"{HOST}:{self._ports['EXPIRED']}"

    def certificate(self, listener: str) -> str:
        """The certificate that a listener presents."""
        return self._key_file(listener).read_text().partition("-----END PRIVATE KEY-----\n")[2]

    def create_user(self, acls: Iterable[Acl] = ()) -> User:
        """A new user with these ACLs alone; the broker has learned of both when this returns."""
        user = User(f"user-{uuid.uuid4().hex[:8]}", new_secret())
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        new = UserScramCredentialUpsertion(user.name, info, user.password.encode())
        self._admin.alter_user_scram_credentials([new])[user.name].result(_TIMEOUT_S)
        wait_until(lambda: user.name in self._users(), f"the password of {user.name}", _TIMEOUT_S)
        self.allow(user.name, acls)
        return user

    def allow(self, name: str, acls: Iterable[Acl]) -> None:
        """Give these ACLs to a user by the name that the broker has for it, and wait until the broker knows them."""
        bindings = {_binding(name, acl) for acl in acls}
        for future in self._admin.create_acls([*bindings]).values() if bindings else ():
            future.result(_TIMEOUT_S)
        wait_until(lambda: bindings <= {*self._acls(name)}, f"the ACLs of {name}", _TIMEOUT_S)

    def take(self, name: str, acl: Acl) -> None:
        """Take an ACL from a user again, and wait until the broker knows that."""
        binding = _binding(name, acl)
        this = AclBindingFilter(
            *(binding.restype, binding.name, binding.resource_pattern_type, binding.principal),
            *(binding.host, binding.operation, binding.permission_type),
        )
        self._admin.delete_acls([this])[this].result(_TIMEOUT_S)
        wait_until(lambda: binding not in self._acls(name), f"an ACL less of {name}", _TIMEOUT_S)

    def _acls(self, name: str) -> list[AclBinding]:
        any_of_user = AclBindingFilter(
            *(ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{name}"),  # type: ignore[arg-type]  # its stubs are wrong
            *("*", AclOperation.ANY, AclPermissionType.ALLOW),
        )
        found: list[AclBinding] = self._admin.describe_acls(any_of_user).result(_TIMEOUT_S)
        return found

    def _users(self) -> Mapping[str, object]:
        """Those with a password, by name."""
        found: Any = self._admin.describe_user_scram_credentials()
        users: Mapping[str, object] = found.result(_TIMEOUT_S)
        return users


def _binding(name: str, acl: Acl) -> AclBinding:
    operation, resource = acl
    kind, _, other = resource.partition(" ")
    pattern = ResourcePatternType.PREFIXED if resource.endswith("*") else ResourcePatternType.LITERAL
    return AclBinding(
        *(
            ResourceType[kind.upper()] if other else ResourceType.TOPIC,
            (other or resource).rstrip("*"),
            pattern,
            f"User:{name}",
        ),
        *("*", AclOperation[operation], AclPermissionType.ALLOW),
    )


def _certificate_settings(listener: str, key_file: Path) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}"
    return {f"{prefix}.ssl.keystore.type": "PEM", f"{prefix}.ssl.keystore.location": str(key_file)}


def _user_settings(listener: str, plain: PlainUser, tokens: TokenEndpoint, ca_file: Path) -> dict[str, str]:
    """How users authenticate at a listener."""
    prefix = f"listener.name.{listener.lower()}"
    trust = f'ssl.truststore.type="PEM" ssl.truststore.location="{ca_file}"'
    modules = {
        _MECHANISM: "scram.ScramLoginModule required;",
        "PLAIN": f'plain.PlainLoginModule required user_{plain.name}="{plain.password}";',
        "OAUTHBEARER": f"oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=broker {trust};",
    }
    handler = f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler"
    return {
        **{f"{prefix}.{name.lower()}.sasl.jaas.config": f"{_SECURITY}.{text}" for name, text in modules.items()},
        f"{prefix}.oauthbearer.sasl.server.callback.handler.class": handler,
        f"{prefix}.oauthbearer.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwks.endpoint.url": tokens.keys_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
