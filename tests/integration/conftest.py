"""Fixtures of the integration tests: two Kafka brokers for the whole run; topic names and capture for each test."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from tests.support.brokers import Broker, RunningBroker
from tests.support.capture_rig import CaptureRig, RigOn
from tests.support.local_loop import LocalLoop
from tests.support.postgres_server import (  # noqa: F401  fixtures, which pytest must find here
    kept_server,
    postgres,
    postgres_folder,
    servers,
)
from tests.support.secured_services import (  # noqa: F401  likewise
    run,
    secured_broker,
    secured_job,
    secured_rig,
    secured_server,
    settings_of,
)
from tests.support.spark_session import spark  # noqa: F401  likewise


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for the whole test run; ``FLUSHTRACKER_TEST_KAFKA=host:port`` selects one that is already running."""
    running = os.environ.get("FLUSHTRACKER_TEST_KAFKA")
    if running:
        yield RunningBroker(running)
    else:
        with LocalBroker(tmp_path_factory.mktemp("broker")) as local:
            yield local


@pytest.fixture(scope="session")
def _second_broker_of_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    broker = LocalBroker(tmp_path_factory.mktemp("killable"))
    yield broker
    broker.stop()


@pytest.fixture
def killable_broker(_second_broker_of_run: LocalBroker) -> LocalBroker:
    """Another broker for the whole run, which a test may kill and stop: the next one that needs it starts it again."""
    _second_broker_of_run.start()
    return _second_broker_of_run


@pytest.fixture
def topic_name() -> Callable[[str], str]:
    """Returns a unique topic name that starts with the given one."""
    return lambda name: f"{name}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def rig_on(broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]) -> Iterator[RigOn]:
    """Makes a rig on a server, with its files in a folder of this name, and closes it after the test."""
    rigs = ExitStack()

    def make(server: LocalPostgres, name: str = "", broker: Broker = broker) -> CaptureRig:
        rig = CaptureRig(server, broker.bootstrap_servers, tmp_path / name, topic_name)
        rigs.callback(rig.close)
        return rig

    with rigs:
        yield make


@pytest.fixture
def rig(postgres: LocalPostgres, rig_on: RigOn) -> CaptureRig:  # noqa: F811  the fixture
    """Topics, publication, slot, and one shape on one table; nothing is captured yet."""
    rig = rig_on(postgres)
    rig.create_with_users()
    return rig


@pytest.fixture
def loop(
    postgres: LocalPostgres,  # noqa: F811  the fixture
    broker: Broker,
    tmp_path: Path,
    topic_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LocalLoop]:
    """Topics, a publication of all tables, and a slot; nothing is captured yet."""
    rig = CaptureRig(postgres, broker.bootstrap_servers, tmp_path, topic_name)
    rig.create()
    loop = LocalLoop(rig, monkeypatch)
    yield loop
    rig.close()
    loop.close()
    if rig.server is not postgres:
        rig.server.stop()
