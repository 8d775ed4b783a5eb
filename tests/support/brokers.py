"""The brokers that integration tests run on."""

from dataclasses import dataclass
from typing import Protocol


class Broker(Protocol):
    """A running broker, which tests share: a test may use it but must not stop it."""

    @property
    def bootstrap_servers(self) -> str: ...


@dataclass(frozen=True)
class RunningBroker:
    """A broker that was started outside the tests."""

    bootstrap_servers: str
