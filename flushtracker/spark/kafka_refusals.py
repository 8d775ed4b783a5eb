"""What the JVM's Kafka client refuses, or is refused, for good: TLS, authentication and ACLs; and what to do."""

import re
from typing import Final

from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import ConfigError

_SHOWN: Final = frozenset(
    {
        *("kafka.security.protocol", "kafka.sasl.mechanism"),
        *("kafka.ssl.truststore.location", "kafka.ssl.keystore.location"),
    }
)
"""Options whose values are no secrets, once a client has accepted them."""

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
"""Java's exception, by its simple name → what to do. The causes of an ``SslAuthenticationException`` say more."""

_REFUSED: Final = re.compile(rf"\b(?P<name>{'|'.join(_REMEDIES)}): (?P<reason>[^\n]+)")


def refused_request(text: str, transport: KafkaTransport, request: str = "a request") -> ConfigError | None:
    """The error for ``text``, which has the name and message of Java exceptions; ``None`` if they are others."""
    found = max(_REFUSED.finditer(text), key=lambda match: -[*_REMEDIES].index(match["name"]), default=None)
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
