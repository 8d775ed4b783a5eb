"""A real PostgreSQL server for tests: fixtures, taken up by the conftest beside it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flushtracker.local.postgres import LocalPostgres


@pytest.fixture
def postgres_folder() -> Iterator[Path]:
    """A folder that the server's user can reach, which pytest's own, closed to others, are not."""
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def postgres(postgres_folder: Path) -> Iterator[LocalPostgres]:
    """A running server of the test's own."""
    with LocalPostgres(postgres_folder / "server") as server:
        yield server
