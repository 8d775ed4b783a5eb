"""Shared by all Kafka clients: connection settings, librdkafka's log, and error texts without secrets.

Also what is wrong when a client gets no token (SASL OAUTHBEARER), by librdkafka's message.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from flushtracker.config.secret_options import SecretOptions
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.tls import certificate_fault

# librdkafka has one error code for all that may be wrong with a token. An endpoint that does not answer is retried, as
# a broker is; a refusal is not. While it answers that it is overloaded (503), librdkafka itself retries, in silence.
_NO_TOKEN: Final = "Failed to acquire SASL OAUTHBEARER token: "  # noqa: S105  a message
# Parts of what curl says about the network.
_UNREACHABLE: Final = re.compile(
    rf"{_NO_TOKEN}(?:Failed to connect|Could not resolve|Couldn't|Could not connect|.*timed out|Recv failure"
    r"|Send failure|Empty reply|SSL connect error|Failure when receiving)"
)
_REMEDIES: Final = {
    "unexpired token": "set the clocks",
    "SSL": "check that https.ca.location has the authority that signed its certificate, and the URL the name in it",
    "trust anchors": "set https.ca.location to the authority that signed the endpoint's certificate",
    "JWT": "check that sasl.oauthbearer.token.endpoint.url gives tokens that are JWTs",
}
"""The remedy by a part of the message."""
_CREDENTIALS: Final = "correct sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret or the endpoint's URL"


def is_unreachable(message: str) -> bool:
    """Whether the token endpoint is unreachable, so that a retry may help.

    >>> is_unreachable("Failed to acquire SASL OAUTHBEARER token: Failed to connect to localhost:9 after 0 ms")
    True
    """
    return _UNREACHABLE.search(message) is not None


def token_remedy(message: str, options: Mapping[str, str]) -> str | None:
    """What to do about a refused token, for an error message; ``None`` if the message is about something else."""
    if _NO_TOKEN not in message:
        return None
    remedy = next((remedy for part, remedy in _REMEDIES.items() if part in message), _CREDENTIALS)
    return f"{remedy} (token endpoint {_endpoint(options)})"


def no_token_yet(options: Mapping[str, str]) -> str | None:
    """Why a client that needs a token may have received nothing at all; ``None`` if it needs none."""
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms", "")
    if mechanism.upper() != "OAUTHBEARER":
        return None
    if not (options.keys() & {"sasl.oauthbearer.method", "enable.sasl.oauthbearer.unsecure.jwt"}):
        return "no token; set sasl.oauthbearer.method: oidc, with the token endpoint"
    return f"no token yet, or no answer of a broker; check that the token endpoint {_endpoint(options)} answers"


def _endpoint(options: Mapping[str, str]) -> str:
    """Only host and port: the rest of a URL may be secret."""
    try:
        url = urlsplit(options.get("sasl.oauthbearer.token.endpoint.url", ""))
        port = url.port or (80 if url.scheme == "http" else 443)
    except ValueError:
        return "of the options"
    return f"{url.hostname}:{port}" if url.hostname else "of the options"


# librdkafka logs every connection attempt, twenty a second. The errors and our own log have what matters, so this
# logger is silent until its level is lowered.
LIBRARY_LOG: Final = logging.getLogger("flushtracker.kafka.librdkafka")
LIBRARY_LOG.setLevel(logging.CRITICAL + 1)

_DEFAULTS: Final = {
    # Reconnect within a second of a broker's return, not ten.
    "reconnect.backoff.max.ms": 1_000,
    # Until a client has its logger, librdkafka would print errors to stderr.
    "log_level": 0,
}
_TIMING: Final = re.compile(r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)")
# Messages contain these options' values as ordinary words, which are no secrets once a client has accepted them.
_NOT_SECRET: Final = frozenset({"security.protocol", "sasl.mechanism", "sasl.mechanisms"})
NO_LEADER: Final = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
"""A partition has no leader at the moment; one will be elected soon."""

_REFUSALS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})
_UNAUTHORIZED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_SASL: Final = "SASL"
_BAD_CERTIFICATE: Final = "certificate verify failed"
_BROKER: Final = re.compile(r"ssl://\[?(?P<host>.+?)\]?:(?P<port>\d+)/")
# With TLS 1.3 a client learns only after the handshake that its certificate is refused; it looks like a broken
# connection.
_REFUSED_CERTIFICATE: Final = re.compile(
    r"alert (?:bad certificate|certificate (?:unknown|expired|revoked|required)|unsupported certificate|unknown ca)"
)
_CLIENT_CERTIFICATES: Final = ("ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location")
_ENCRYPTED: Final = re.compile(r"\bssl\.(?P<kind>key|keystore)\.(?:location|pem)\b")
"""Files that librdkafka cannot read without a password."""
_INVALID_TOKEN: Final = "invalid_token"  # noqa: S105  what a broker answers
_MAX_REASON_CHARS: Final = 400
PRODUCER_DEFAULTS: Final = {"compression.type": "zstd", "linger.ms": 5}
_BATCH_BYTES: Final = 1_000_000
"""librdkafka's default."""
_LEAST_QUEUE_KBYTES: Final = 64 << 10


class ClientErrors:
    """The last error that librdkafka reported, with the options' values masked.

    librdkafka calls :meth:`note` from a client's ``poll``.
    """

    def __init__(self, options: SecretOptions) -> None:
        self._options = options
        self._last = ""
        self.is_refusal = False
        """Whether it concerned TLS or authentication, which retries do not fix."""

    def note(self, error: KafkaError) -> None:
        # "All brokers down" is less specific than the error of each broker.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = self.masked(error)
            self.is_refusal = not is_unreachable(error.str()) and (
                error.code() in _REFUSALS or _REFUSED_CERTIFICATE.search(self._last) is not None
            )

    def clear(self) -> None:
        """Forget the error once the brokers respond again."""
        self._last, self.is_refusal = "", False

    @property
    def is_silent(self) -> bool:
        """Whether there was none, for example when a broker responds that it cannot do something yet."""
        return not self._last

    @property
    def last(self) -> str:
        # A broker closes a connection that does not begin as its listener expects; librdkafka then reports nothing.
        return (
            self._last
            or no_token_yet(self._options)
            or "no answer like that of a broker; check that Kafka listens there, and security.protocol"
        )

    def masked(self, error: KafkaError) -> str:
        text = self._options.masked(_TIMING.sub("", error.str()), shown=_NOT_SECRET)
        return text[:_MAX_REASON_CHARS].rstrip(".")

    def refusal(self, servers: str) -> BrokerError:
        """The error for a client that the brokers refuse, or that refuses them, with the reason and a remedy."""
        if (remedy := token_remedy(self._last, self._options)) is not None:
            return BrokerError(f"no token for Kafka at {servers}: {self.last}; {remedy}")
        broker = _BROKER.search(self._last)
        if _BAD_CERTIFICATE not in self._last or broker is None:
            return BrokerError(f"Kafka at {servers} refuses the client: {self.last}; {self._remedy()}")
        host, ca = broker["host"], self._options.get("ssl.ca.pem") or self._options.get("ssl.ca.location")
        crl = self._options.get("ssl.crl.location")
        reason = certificate_fault(host, int(broker["port"]), ca=ca, ca_option="ssl.ca.location", crl=crl)
        return BrokerError(f"the certificate of Kafka's broker {host}:{broker['port']} is not accepted: {reason}")

    def _remedy(self) -> str:
        if _INVALID_TOKEN in self._last:
            return "the broker does not accept the token: check its audience, issuer and scope, and the clocks"
        if _SASL in self._last:
            return "correct the user, the password or the mechanism"
        if _REFUSED_CERTIFICATE.search(self._last) is None:
            return "correct the options ssl.*"
        if any(name in self._options for name in _CLIENT_CERTIFICATES):
            return "check that the client's certificate has not expired, and that the broker trusts who signed it"
        return "that listener demands a client's certificate: set ssl.certificate.location and ssl.key.location"


def client_settings(config: KafkaConfig, errors: ClientErrors) -> dict[str, Any]:
    """The settings of every client; the user's options override our defaults."""
    return {
        **_DEFAULTS,
        **config.options,
        "bootstrap.servers": config.bootstrap_servers,
        "error_cb": errors.note,
        "logger": LIBRARY_LOG,
    }


def admin_client(config: KafkaConfig, errors: ClientErrors) -> AdminClient:
    """Raises ``ConfigError`` if librdkafka rejects its options."""
    try:
        return AdminClient(client_settings(config, errors))
    except (KafkaException, TypeError) as error:
        raise rejected_options(error, config.options) from error


def producer_settings(config: KafkaConfig, errors: ClientErrors) -> dict[str, Any]:
    """Likewise, of every producer: no record is lost, and each is sent once; all that ``config`` allows are taken."""
    most = config.max_event_bytes
    return {
        **PRODUCER_DEFAULTS,
        # A batch must not be larger than the topics accept, either.
        "batch.size": min(_BATCH_BYTES, most),
        **client_settings(config, errors),
        "acks": "all",
        "enable.idempotence": True,
        # The default of Java clients, so that all producers put the same key into the same partition.
        "partitioner": "murmur2_random",
        # The largest record plus Kafka's framing, and a queue for two of these or for many small ones.
        "message.max.bytes": most + (64 << 10),
        "queue.buffering.max.messages": 100_000,
        "queue.buffering.max.kbytes": max(2 * most // 1024 + 128, _LEAST_QUEUE_KBYTES),
    }


def rejected_options(error: KafkaException | TypeError, options: SecretOptions) -> ConfigError:
    """The error for options that librdkafka rejects: it names the option if possible, but no value."""
    reason = kafka_error(error).str() if isinstance(error, KafkaException) else str(error)
    encrypted = _ENCRYPTED.search(reason)
    wrong = f"the file, or ssl.{encrypted['kind']}.password" if encrypted else "the configuration"
    return ConfigError(f"Kafka's client rejects its options: {options.masked(reason)}; correct {wrong}")


def missing_acl(error: KafkaError, operation: str, resource: str) -> str:
    """What to do if the error is a missing ACL, to append to a message; empty for any other error."""
    return f"; allow this user {operation} on {resource}" if error.code() in _UNAUTHORIZED else ""


def kafka_error(error: KafkaException) -> KafkaError:
    carried: KafkaError = error.args[0]
    return carried
