"""Failures of Kafka's Java client: which to retry, and how to correct the others.

The others are refusals by TLS, authentication or ACLs.
"""

import re
from typing import Final

from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import BrokerError, ConfigError

RETRIABLE: Final = frozenset(
    [
        *("AuthorizerNotReady", "ConcurrentTransactions", "CoordinatorLoadInProgress", "CoordinatorNotAvailable"),
        *("CorruptRecord", "Disconnect", "ElectionNotNeeded", "EligibleLeadersNotAvailable", "FencedLeaderEpoch"),
        *("FetchSessionIdNotFound", "FetchSessionTopicId", "InconsistentTopicId", "InvalidFetchSessionEpoch"),
        *("InvalidMetadata", "InvalidShareSessionEpoch", "KafkaStorage", "LeaderNotAvailable", "ListenerNotFound"),
        *("Network", "NotController", "NotCoordinator", "NotEnoughReplicas", "NotEnoughReplicasAfterAppend"),
        *("NotLeaderForPartition", "NotLeaderOrFollower", "OffsetNotAvailable", "PreferredLeaderNotAvailable"),
        *("ReplicaNotAvailable", "Retriable", "ShareSessionNotFound", "ThrottlingQuotaExceeded", "Timeout"),
        *("UnknownLeaderEpoch", "UnstableOffsetCommit"),
    ]
)
"""Kafka's retriable errors, without "Exception"; not those for missing topics, which the job needs."""

_ERROR: Final = r"org\.apache\.kafka\.common\.errors\."
_UNAVAILABLE: Final = re.compile(
    rf"{_ERROR}((?:{'|'.join(sorted(RETRIABLE))}|BrokerNotAvailable)Exception[^\n]*)"
    # A name may not resolve yet, for example that of a service whose first pod is not ready.
    r"|(No resolvable bootstrap urls[^\n]*)|java\.net\.(UnknownHostException[^\n]*)"
    r"|(Cannot fetch record for offset[^\n]*)"
)
_REFUSED: Final = re.compile(
    rf"{_ERROR}((?:\w*Authorization|\w*Authentication|UnsupportedVersion|IllegalSaslState|UnsupportedSaslMechanism"
    r"|SecurityDisabled)Exception[^\n]*)"
)
_MISSING: Final = re.compile(rf"{_ERROR}(UnknownTopic(?:OrPartition|Id)Exception[^\n]*)")
_MAX_REASON_CHARS: Final = 400

_SHOWN: Final = frozenset(
    {
        *("kafka.security.protocol", "kafka.sasl.mechanism"),
        *("kafka.ssl.truststore.location", "kafka.ssl.keystore.location"),
    }
)
"""Options whose values are not secret once a client has accepted them."""

_CHECK_CA: Final = "check that kafka.ssl.truststore.location has the authority that signed the broker's certificate"
_READ: Final = "allow this user READ on that topic"
_REMEDIES: Final = {
    "TopicAuthorizationException": _READ,
    "CertificateExpiredException": "the broker's certificate has expired: renew it",
    "CertificateNotYetValidException": "the broker's certificate is not valid yet: set the clocks",
    "SunCertPathBuilderException": _CHECK_CA,
    "CertPathValidatorException": _CHECK_CA,
    "CertificateException": "connect by a name that the broker's certificate has",
    "SaslAuthenticationException": "correct user and password in kafka.sasl.jaas.config",
    "UnsupportedSaslMechanismException": "correct kafka.sasl.mechanism",
    "SSLHandshakeException": (
        "correct the options kafka.ssl.*; a broker refuses a client's certificate (kafka.ssl.keystore.*) that is "
        "missing, has expired, or that nobody has signed whom it trusts"
    ),
    "SslAuthenticationException": "correct the options kafka.ssl.*",
}
"""The remedy by the Java exception's simple name. Causes of an ``SslAuthenticationException`` come first."""

_INVALID_TOKEN: Final = '"status":"invalid_token"'  # noqa: S105  what a broker answers
_REFUSED_TOKEN: Final = re.compile(r"The response code (\d+ and error response [^\n]*?) was encountered")
_NO_TOKEN: Final = "An internal error occurred while retrieving token from callback handler"  # noqa: S105  Java's message
_TOKEN_HANDLER: Final = "kafka.sasl.login.callback.handler.class"  # noqa: S105  an option's name

_OPTION_REMEDIES: Final = {
    "PBES2": (
        "Java cannot read a key that is encrypted like this; encrypt it with openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES, "
        "or use PKCS12"
    ),
    "UnrecoverableKeyException": "correct kafka.ssl.keystore.password or kafka.ssl.key.password",
    "BadPaddingException": "correct kafka.ssl.key.password",
    "InvalidKeyException": "set kafka.ssl.key.password, if the key is encrypted",
    "NoSuchFileException": "name a file that exists",
    "allowed.urls": "set it by spark.driver.defaultJavaOptions and spark.executor.defaultJavaOptions, as -D…",
}
"""The remedy by part of the reason why Java's client cannot be created."""

_REMEDIED: Final = re.compile(rf"\b(?P<name>{'|'.join(_REMEDIES)}): (?P<reason>[^\n]+)")


def kafka_failure(text: str, transport: KafkaTransport, request: str = "a request") -> BrokerError | ConfigError | None:
    """The error for the Java exceptions named in ``text``; ``None`` if none of them is Kafka's.

    A ``BrokerError`` if a retry of ``request`` may help. Values of options are masked.
    """
    servers = transport.bootstrap_servers
    if no_token := _no_token(text, transport):
        return no_token
    if known := _refused_request(text, transport, request):
        return known
    if refused := _REFUSED.search(text):
        reason = _reason(refused, transport)
        return ConfigError(
            f"Kafka at {servers} refuses {request}: {reason}; correct kafka.options, or what its user may do"
        )
    if unavailable := _UNAVAILABLE.search(text):
        return BrokerError(f"Kafka at {servers} does not answer: {_reason(unavailable, transport)}")
    if missing := _MISSING.search(text):
        # Not retried: a topic that is created again has other records.
        topics = ", ".join(transport.streams.values())
        return ConfigError(
            f"Kafka at {servers} no longer has one of the topics {topics}: {_reason(missing, transport)}; start again, "
            "which says what to do if it was deleted, or created again"
        )
    return None


def option_remedy(reason: str) -> str:
    """The remedy for options with which no client can be created, to append to a message; empty if unknown."""
    return next((f"; {remedy}" for part, remedy in _OPTION_REMEDIES.items() if part in reason), "")


def _no_token(text: str, transport: KafkaTransport) -> BrokerError | ConfigError | None:
    """The error for a client that gets no token; ``None`` if ``text`` is about something else.

    Java's text does not say whether the token endpoint is down or its certificate is not trusted, so both are retried.
    So is a token that the broker does not accept: while the endpoint is down, the last one expires.
    """
    begin = f"no token for Kafka at {transport.bootstrap_servers}"
    if refused := _REFUSED_TOKEN.search(text):
        return ConfigError(
            f"{begin}: the token endpoint has answered with status {_reason(refused, transport)}; correct clientId and "
            "clientSecret in kafka.sasl.jaas.config, or kafka.sasl.oauthbearer.token.endpoint.url"
        )
    if _INVALID_TOKEN in text:
        return BrokerError(
            f"Kafka at {transport.bootstrap_servers} does not accept the token (invalid_token); if it has not just "
            "expired, check its audience, issuer and scope, and the clocks"
        )
    if _NO_TOKEN not in text:
        return None
    if _TOKEN_HANDLER not in transport.options:
        return ConfigError(
            f"{begin}: kafka.spark_options has no {_TOKEN_HANDLER}; set it to the handler of token endpoints"
        )
    return BrokerError(
        f"{begin}: the token endpoint does not answer, or its certificate is not trusted; check "
        "kafka.sasl.oauthbearer.token.endpoint.url, and ssl.truststore.location in kafka.sasl.jaas.config"
    )


def _reason(found: re.Match[str], transport: KafkaTransport) -> str:
    return masked(next(group for group in found.groups() if group)[:_MAX_REASON_CHARS], transport)


def _refused_request(text: str, transport: KafkaTransport, request: str = "a request") -> ConfigError | None:
    """The error for a refusal with a specific remedy; ``None`` if ``text`` names none."""
    found = max(_REMEDIED.finditer(text), key=lambda match: -[*_REMEDIES].index(match["name"]), default=None)
    if found is None:
        return None
    reason = masked(found["reason"].strip().rstrip("."), transport)
    remedy = _REMEDIES[found["name"]]
    topics = transport.streams.values()
    if remedy == _READ and not any(topic in f"{request} {reason}" for topic in topics):
        # Java's client does not always name them.
        remedy = f"allow this user READ on each of the topics {', '.join(topics)}"
    return ConfigError(f"Kafka at {transport.bootstrap_servers} refuses {request}: {found['name']}: {reason}; {remedy}")


def masked(text: str, transport: KafkaTransport) -> str:
    return transport.options.masked(text, shown=_SHOWN)
