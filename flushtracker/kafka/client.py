"""What every Kafka client shares: connection settings, librdkafka's log, and error texts without secrets."""

import logging
import re
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from flushtracker.config.secret_options import SecretOptions
from flushtracker.errors import ConfigError
from flushtracker.kafka.kafka_config import KafkaConfig

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
_SHORTEST_SECRET: Final = 4
"""Shorter values are numbers or flags; masking them would make messages unreadable."""

NO_LEADER: Final = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
"""A partition has no leader now, and soon will."""

_REFUSALS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})


class ClientErrors:
    """The last error that librdkafka reported, with the options' values masked.

    librdkafka calls :meth:`note` from a client's ``poll``.
    """

    def __init__(self, options: SecretOptions) -> None:
        self._hidden = [value for name, value in options.items() if name not in _NOT_SECRET]
        self._last = ""
        self.is_refusal = False
        """Whether it was about TLS or authentication, which retrying does not fix."""

    def note(self, error: KafkaError) -> None:
        # "All brokers down" is less specific than the error of each broker.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = self.masked(error)
            self.is_refusal = error.code() in _REFUSALS

    def clear(self) -> None:
        """Forget the error, once the brokers answer again."""
        self._last, self.is_refusal = "", False

    @property
    def last(self) -> str:
        return self._last or "no answer"

    def masked(self, error: KafkaError) -> str:
        """The error's text, with secrets masked."""
        return _masked(_TIMING.sub("", error.str()), self._hidden)


def client_settings(config: KafkaConfig, errors: ClientErrors) -> dict[str, Any]:
    """The settings of every client; the user's options override our defaults."""
    return {
        **_DEFAULTS,
        **config.options,
        "bootstrap.servers": config.bootstrap_servers,
        "error_cb": errors.note,
        "logger": LIBRARY_LOG,
    }


def rejected_options(error: KafkaException | TypeError, options: SecretOptions) -> ConfigError:
    """The error for options that librdkafka rejects: it names the option if possible, and shows no value."""
    reason = kafka_error(error).str() if isinstance(error, KafkaException) else str(error)
    return ConfigError(
        f"Kafka's client rejects its options: {_masked(reason, options.values())}; correct the configuration"
    )


def kafka_error(error: KafkaException) -> KafkaError:
    """The error that the exception carries."""
    carried: KafkaError = error.args[0]
    return carried


def _masked(text: str, secrets: Iterable[str]) -> str:
    """The text with each secret masked, the longest first, since one may contain another."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "…")
    return text
