"""A snapshot is appended once capture has published past it, wherever a failover could lose what it has."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from flushtracker.errors import PostgresUnavailableError
from flushtracker.postgres import published_wait
from flushtracker.postgres.connection import Connection
from flushtracker.postgres.published_wait import wait_until_published

Answer = tuple[str | None, bool]


def wait(monkeypatch: pytest.MonkeyPatch, *answers: Answer, lsn: int = 0x100) -> int:
    """How often the server was asked; its answers, of which the last one stays, are how far, and whether to wait."""
    asked: list[str] = []

    def answer() -> Iterator[Answer]:
        yield from answers
        while True:
            yield answers[-1]

    found = answer()

    def rows(_: object, statement: str, parameters: tuple[Any, ...]) -> list[Answer]:
        assert parameters == ("s",)
        asked.append(statement)
        return [next(found)]

    monkeypatch.setattr(published_wait, "rows", rows)
    monkeypatch.setattr(published_wait, "_POLL_S", 0.01)
    monkeypatch.setattr(published_wait, "TIMEOUT_S", 0.2)
    wait_until_published(cast("Connection", None), "s", lsn, lambda: None)
    return len(asked)


def test_a_server_without_capture_and_standby_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait(monkeypatch, ("0/10", False)) == 1
    assert wait(monkeypatch, (None, False)) == 1


def test_capture_that_is_behind_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it, or the standby, goes away meanwhile; and for longer than the timeout, while it publishes."""
    assert wait(monkeypatch, ("0/10", True), ("0/10", False), ("0/FF", True), ("0/100", True)) == 4
    steps = [(f"0/{lsn:X}", True) for lsn in range(1, 0x41)]
    assert wait(monkeypatch, *steps, lsn=0x40) == 0x40


@pytest.mark.parametrize("published", ["0/FF", None])
def test_capture_that_publishes_nothing_fails_the_attempt(
    monkeypatch: pytest.MonkeyPatch, published: str | None
) -> None:
    with pytest.raises(PostgresUnavailableError, match=r"sees up to 0/100, but capture has published only up to 0/"):
        wait(monkeypatch, (published, True))
