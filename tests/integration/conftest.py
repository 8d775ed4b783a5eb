"""Fixtures of the integration tests: one Kafka broker for the whole run, and unique topic names for each test."""

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from flushtracker.local.broker import LocalBroker
from tests.spark.conftest import spark  # noqa: F401  a fixture, which pytest must find here
from tests.support.brokers import Broker, RunningBroker
from tests.support.postgres_server import postgres, postgres_folder  # noqa: F401  likewise


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for the whole test run; ``FLUSHTRACKER_TEST_KAFKA=host:port`` selects one that is already running."""
    running = os.environ.get("FLUSHTRACKER_TEST_KAFKA")
    if running:
        yield RunningBroker(running)
    else:
        with LocalBroker(tmp_path_factory.mktemp("broker")) as local:
            yield local


@pytest.fixture
def topic_name() -> Callable[[str], str]:
    """Returns a unique topic name that starts with the given one."""
    return lambda name: f"{name}-{uuid.uuid4().hex[:12]}"
