"""Failures of Kafka's Java client: which are retried, and how to correct the others.

The others are refusals: by TLS, authentication or ACLs.
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
"""Kafka's retriable errors, without "Exception", except for topics that do not exist: the job needs them."""

_ERROR: Final = r"org\.apache\.kafka\.common\.errors\."
_UNAVAILABLE: Final = re.compile(
    rf"{_ERROR}((?:{'|'.join(sorted(RETRIABLE))}|BrokerNotAvailable)Exception[^\n]*)"
    # A name may not resolve yet, such as that of a service whose first pod is not ready.
    r"|(No resolvable bootstrap urls[^\n]*)|java\.net\.(UnknownHostException[^\n]*)"
    r"|(Cannot fetch record for offset[^\n]*)"
)
_REFUSED: Final = re.compile(
    rf"{_ERROR}((?:\w*Authorization|\w*Authentication|UnsupportedVersion|IllegalSaslState|UnsupportedSaslMechanism"
    r"|SecurityDisabled)Exception[^\n]*)"
)
_MAX_REASON_CHARS: Final = 400

_SHOWN: Final = frozenset(
    {
        *("kafka.security.protocol", "kafka.sasl.mechanism"),
        *("kafka.ssl.truststore.location", "kafka.ssl.keystore.location"),
    }
)
"""Options whose values are not secret, once a client has accepted them."""

_CHECK_CA: Final = "check that kafka.ssl.truststore.location has the authority that signed the broker's certificate"
_REMEDIES: Final = {
    "TopicAuthorizationException": "allow this user READ on that topic",
    "CertificateExpiredException": "the broker's certificate has expired: renew it",
    "CertificateNotYetValidException": "the broker's certificate is not valid yet: set the clocks",
    "SunCertPathBuilderException": _CHECK_CA,
    "CertPathValidatorException": _CHECK_CA,
    "CertificateException": "connect by a name that the broker's certificate has",
    "SaslAuthenticationException": "correct user and password in kafka.sasl.jaas.config",
    "UnsupportedSaslMechanismException": "correct kafka.sasl.mechanism",
    "SslAuthenticationException": "correct the options kafka.ssl.*",
}
"""Java's exception, by its simple name → what to do. The causes of an ``SslAuthenticationException`` come first."""

_REMEDIED: Final = re.compile(rf"\b(?P<name>{'|'.join(_REMEDIES)}): (?P<reason>[^\n]+)")


def kafka_failure(text: str, transport: KafkaTransport, request: str = "a request") -> BrokerError | ConfigError | None:
    """The error for the Java exceptions that ``text`` names; ``None`` if none of them is Kafka's.

    A ``BrokerError`` if a retry of ``request`` may help. Values of options are masked.
    """
    servers = transport.bootstrap_servers
    if known := _refused_request(text, transport, request):
        return known
    if refused := _REFUSED.search(text):
        reason = _reason(refused, transport)
        return ConfigError(
            f"Kafka at {servers} refuses {request}: {reason}; correct source.options, or what its user may do"
        )
    if unavailable := _UNAVAILABLE.search(text):
        return BrokerError(f"Kafka at {servers} does not answer: {_reason(unavailable, transport)}")
    return None


def _reason(found: re.Match[str], transport: KafkaTransport) -> str:
    return masked(next(group for group in found.groups() if group)[:_MAX_REASON_CHARS], transport)


def _refused_request(text: str, transport: KafkaTransport, request: str = "a request") -> ConfigError | None:
    """The error for a refusal that has a remedy of its own; ``None`` if ``text`` names none."""
    found = max(_REMEDIED.finditer(text), key=lambda match: -[*_REMEDIES].index(match["name"]), default=None)
    if found is None:
        return None
    reason = masked(found["reason"].strip().rstrip("."), transport)
    return ConfigError(
        f"Kafka at {transport.bootstrap_servers} refuses {request}: {found['name']}: {reason}; "
        f"{_REMEDIES[found['name']]}"
    )


def masked(text: str, transport: KafkaTransport) -> str:
    """``text`` without the options' values."""
    return transport.options.masked(text, shown=_SHOWN)
