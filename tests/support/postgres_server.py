"""Fixtures for tests on a real PostgreSQL server; the integration tests' conftest imports them."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from flushtracker.local.postgres import LocalPostgres
from tests.support.kept_server import KeptServer
from tests.support.new_server import server_folder


@pytest.fixture
def postgres_folder() -> Iterator[Path]:
    with server_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def kept_server() -> Iterator[KeptServer]:
    with closing(KeptServer()) as kept:
        yield kept


@pytest.fixture
def postgres(kept_server: KeptServer) -> Iterator[LocalPostgres]:
    """A running server, as new, which the test may stop and configure."""
    yield kept_server.take()
    kept_server.give_back()


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    """Stops the servers that a test has started."""
    with ExitStack() as stack:
        yield stack
