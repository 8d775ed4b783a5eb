"""Explains why a Kafka client gets no token (SASL OAUTHBEARER), from librdkafka's message, and what to do.

librdkafka has one error code for all cases. An unresponsive token endpoint is retried, like a broker; a refusal is not.
While the endpoint is overloaded (503), librdkafka itself retries and reports nothing.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

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
