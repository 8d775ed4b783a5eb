"""Which failures of Kafka's Java client a retry may cure, and what to correct about the others."""

import re
from typing import Final

from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.spark.kafka_refusals import masked, refused_request

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
"""Kafka's retriable errors, without "Exception". Topics that do not exist are not among them: the job needs them."""

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


def kafka_failure(text: str, transport: KafkaTransport, request: str = "a request") -> BrokerError | ConfigError | None:
    """The error for the Java exceptions that ``text`` names; ``None`` if none of them is Kafka's.

    A ``BrokerError`` if a retry of ``request`` may help. Values of options are masked.
    """
    servers = transport.bootstrap_servers
    if known := refused_request(text, transport, request):
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
