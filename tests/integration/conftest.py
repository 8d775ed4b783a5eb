"""One Kafka broker for all tests that need one; each test has topics of its own on it."""

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pytest

from flushtracker.local.broker import LocalBroker
from tests.spark.conftest import spark  # noqa: F401  likewise
from tests.support.postgres_server import postgres, postgres_folder  # noqa: F401  fixtures, to be found here


class Broker(Protocol):
    """A broker that is running: a test may use it, and must not stop it."""

    @property
    def bootstrap_servers(self) -> str: ...


@dataclass(frozen=True)
class RunningBroker:
    """One that somebody else has started."""

    bootstrap_servers: str


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for the whole session; ``FLUSHTRACKER_TEST_KAFKA=host:port`` names one that is running already."""
    running = os.environ.get("FLUSHTRACKER_TEST_KAFKA")
    if running:
        yield RunningBroker(running)
    else:
        with LocalBroker(tmp_path_factory.mktemp("broker")) as local:
            yield local


@pytest.fixture
def topic_name() -> Callable[[str], str]:
    """A name for a topic that no other test has, made of the one given."""
    return lambda name: f"{name}-{uuid.uuid4().hex[:12]}"
