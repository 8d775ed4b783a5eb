"""What every client of Kafka has in common: how it connects, where librdkafka's log goes, and what its errors say."""

import logging
import re
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from flushtracker.config.secret_options import SecretOptions
from flushtracker.errors import ConfigError
from flushtracker.kafka.kafka_config import KafkaConfig

# librdkafka logs each attempt to connect, twenty a second. What matters of it is in the errors and in our own log, so
# this logger is silent until somebody lowers its level.
LIBRARY_LOG: Final = logging.getLogger("flushtracker.kafka.librdkafka")
LIBRARY_LOG.setLevel(logging.CRITICAL + 1)

_DEFAULTS: Final = {
    # A broker that comes back is found again within a second, not ten.
    "reconnect.backoff.max.ms": 1_000,
    # What goes wrong before a client has its logger would be printed.
    "log_level": 0,
}
_TIMING: Final = re.compile(r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)")
# Their values are words that messages use for themselves, and no secrets once a client has accepted them.
_WORDS: Final = frozenset({"security.protocol", "sasl.mechanism", "sasl.mechanisms"})
_SHORTEST_SECRET: Final = 4
"""What is shorter is a number or a yes, and would blot out half of every message."""

_REFUSALS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})


class ClientErrors:
    """What librdkafka last complained of, fit to be shown: no option's value is in it.

    librdkafka calls :meth:`note` from a client's ``poll``.
    """

    def __init__(self, options: SecretOptions) -> None:
        self._hidden = [value for name, value in options.items() if name not in _WORDS]
        self._last = ""
        self.is_refusal = False
        """Whether it was about TLS or a password, which waiting does not mend."""

    def note(self, error: KafkaError) -> None:
        # That all brokers are down says less than what was said of each.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = self.shown(error)
            self.is_refusal = error.code() in _REFUSALS

    def clear(self) -> None:
        """Forget it, once the brokers answer again."""
        self._last, self.is_refusal = "", False

    @property
    def last(self) -> str:
        return self._last or "no answer"

    def shown(self, error: KafkaError) -> str:
        """The error's own words."""
        return _without(_TIMING.sub("", error.str()), self._hidden)


def client_settings(config: KafkaConfig, errors: ClientErrors) -> dict[str, Any]:
    """The settings of any client; the user's options come before our defaults."""
    return {
        **_DEFAULTS,
        **config.options,
        "bootstrap.servers": config.bootstrap_servers,
        "error_cb": errors.note,
        "logger": LIBRARY_LOG,
    }


def refused_options(error: KafkaException | TypeError, options: SecretOptions) -> ConfigError:
    """The error of a client that librdkafka does not make: it names the option where it can, and shows no value."""
    said = kafka_error(error).str() if isinstance(error, KafkaException) else str(error)
    return ConfigError(
        f"Kafka's client refuses its options: {_without(said, options.values())}; correct the configuration"
    )


def kafka_error(error: KafkaException) -> KafkaError:
    """The error that the exception carries."""
    carried: KafkaError = error.args[0]
    return carried


def _without(text: str, secrets: Iterable[str]) -> str:
    """The text with each secret blotted out, the longest first, since one may be a part of another."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "…")
    return text
