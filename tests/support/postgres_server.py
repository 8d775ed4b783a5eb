"""Fixtures for tests on a real PostgreSQL server; the integration tests' conftest imports them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flushtracker.local.postgres import LocalPostgres
from tests.support.new_server import new_server, server_folder


@pytest.fixture
def postgres_folder() -> Iterator[Path]:
    with server_folder() as folder:
        yield folder


@pytest.fixture
def postgres(postgres_folder: Path) -> Iterator[LocalPostgres]:
    """A running server for this test alone."""
    with new_server(postgres_folder / "server") as server:
        yield server


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    """Stops the servers that a test has started."""
    with ExitStack() as stack:
        yield stack
