"""The ways by which a client authenticates at the secured broker, other than SCRAM, for librdkafka and for Java."""

import os
import subprocess
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.secret_watch import new_secret
from tests.support.secured_broker import Acl, SecuredBroker

WAYS: Final = ("PLAIN", "certificate", "token")
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"


@dataclass(frozen=True)
class Access:
    """Where a client connects and with which options; ``secrets`` may appear nowhere."""

    way: str
    principal: str
    servers: str
    options: dict[str, str]
    java_options: dict[str, str]
    secrets: dict[str, str] = field(default_factory=dict)


def create_access(broker: SecuredBroker, way: str, acls: Iterable[Acl] = ()) -> Access:
    """A client with these ACLs alone."""
    make = {"PLAIN": _by_password, "certificate": _by_certificate, "token": _by_token}
    access = make[way](broker)
    broker.allow(access.principal, acls)
    return access


def _by_password(broker: SecuredBroker) -> Access:
    user = broker.plain_user
    options, java = user.options(broker.ca_file), user.java_options(broker.ca_file)
    return Access("PLAIN", user.name, broker.servers, options, java, {"PASSWORD": user.password})


def _by_certificate(broker: SecuredBroker) -> Access:
    name, password = _new_name(), new_secret()
    key, certificate = broker.authority.issue(name, password=password)
    options = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(broker.ca_file),
        "ssl.key.location": _written(broker.folder / f"{name}.key", key),
        "ssl.key.password": password,
        "ssl.certificate.location": _written(broker.folder / f"{name}.pem", certificate),
    }
    java = java_trust(broker.ca_file, "SSL") | {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": _written(
            broker.folder / f"{name}.java.pem", _for_java(key, password) + certificate
        ),
        "kafka.ssl.key.password": password,
    }
    return Access(
        *("certificate", f"CN={name}", broker.servers_for_certificates, options, java), secrets={"PASSWORD": password}
    )


def _for_java(key: str, password: str) -> str:
    """The key encrypted as Java can read it, by the command that the job's message names."""
    command = [
        *("openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passin", "env:PASSWORD", "-passout"),
        "env:PASSWORD",
    ]
    environment = {**os.environ, "PASSWORD": password}
    return subprocess.run(command, input=key, capture_output=True, text=True, check=True, env=environment).stdout


def _by_token(broker: SecuredBroker) -> Access:
    client, secret = _new_name(), new_secret()
    broker.tokens.secrets[client] = secret
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(broker.ca_file),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": client,
        "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.token.endpoint.url": broker.tokens.token_url,
        "https.ca.location": str(broker.ca_file),
    }
    trust = f'ssl.truststore.type="PEM" ssl.truststore.location="{broker.ca_file}"'
    login = f'clientId="{client}" clientSecret="{secret}"'
    java = java_trust(broker.ca_file, "SASL_SSL") | {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": broker.tokens.token_url,
        "kafka.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required {login} {trust};",
    }
    return Access("token", client, broker.servers, options, java, {"PASSWORD": secret})


def java_trust(ca_file: Path, protocol: str) -> dict[str, str]:
    """Java's options for a broker whose certificate this authority has signed."""
    return {
        "kafka.security.protocol": protocol,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(ca_file),
    }


def _new_name() -> str:
    return f"client-{uuid.uuid4().hex[:8]}"


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
