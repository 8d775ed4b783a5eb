"""``check_brokers``: reports a wrong broker address within seconds, while a program starts.

A broker may start later than the program, so this is only a warning. It needs no options: it opens a connection to each
server, and requests the topics only if that needs neither TLS nor authentication.
"""

import logging
import re
import socket
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from confluent_kafka import KafkaException

from flushtracker.config.secret_options import SecretOptions
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka.client import ClientErrors, admin_client
from flushtracker.kafka.kafka_config import KafkaConfig

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S: Final = 3.0
_ANSWER_TIMEOUT_S: Final = 4.0
_ADDRESS: Final = re.compile(r".+:[0-9]+")
_NO_TOPICS: Final = Topics("", "", "", "")


def check_brokers(servers: str, security: str, gives_up_after_s: float) -> None:
    """Warn if none of the ``servers`` accepts a connection, or none responds like a broker.

    ``security`` is Kafka's ``security.protocol``. Takes at most seven seconds, however many addresses a name has and
    even if it cannot be resolved.
    """
    reason = _refusal(servers)
    if reason is None and security.upper() == "PLAINTEXT":
        reason = _silence(servers)
    if reason is not None:
        log_waiting(servers, reason, gives_up_after_s)


def log_waiting(servers: str, reason: str, gives_up_after_s: float) -> None:
    logger.warning("waiting for kafka servers=%s gives_up_after_s=%.0f reason=%s", servers, gives_up_after_s, reason)


def _refusal(servers: str) -> str | None:
    """Why none of the servers accepts a connection; ``None`` if one does, or if only the client can parse the
    address.
    """
    names = list(dict.fromkeys(server.strip() for server in servers.split(",")))
    if not all(_ADDRESS.fullmatch(name) for name in names):
        return None
    answers: SimpleQueue[tuple[str, str | None]] = SimpleQueue()
    # Name resolution has no timeout, and each address is tried in turn, so use threads, which end by themselves.
    for name in names:
        Thread(target=lambda name=name: answers.put((name, _refusal_of(name))), daemon=True).start()
    reasons = dict.fromkeys(names, f"no answer within {_CONNECT_TIMEOUT_S:g} s")
    deadline = time.monotonic() + _CONNECT_TIMEOUT_S
    with suppress(Empty):
        for _ in names:
            name, reason = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            if reason is None:
                return None
            reasons[name] = reason
    return ", ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _refusal_of(server: str) -> str | None:
    """Why ``server`` accepts no connection; ``None`` if it does."""
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


def _silence(servers: str) -> str | None:
    """Why none of the servers responds like a broker; ``None`` if one does."""
    errors = ClientErrors(SecretOptions())
    # The settings of every client, without those of a configuration.
    client = admin_client(KafkaConfig(servers, _NO_TOPICS), errors)
    try:
        client.list_topics(timeout=_ANSWER_TIMEOUT_S)
    except KafkaException:
        client.poll(0)
        return errors.last
    return None
