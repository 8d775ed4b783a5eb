"""The slot's figures while a standby does not answer."""

from collections.abc import Callable, Mapping
from threading import Event
from typing import Any, cast

import pytest

from flushtracker.capture import slot_poller
from flushtracker.capture.slot_poller import SlotPoller
from flushtracker.postgres.connection import Connection
from flushtracker.status.capture_status import SlotStatus
from tests.support.waiting import wait_until

FIGURES = SlotStatus(
    "s", 7, is_active=True, wal_status="reserved", written_lsn=2, confirmed_lsn=1, retained_bytes=9, safe_wal_bytes=None
)


class _Server:
    """A connection of which nothing is asked."""

    def close(self) -> None:
        pass


def test_figures_do_not_wait_for_a_standby_that_accepts_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would look as old as those of a server that is down, as long as one of its standbys hangs."""
    asked, answered = Event(), Event()

    def lacks(*_: object) -> tuple[str, ...]:
        asked.set()
        answered.wait()
        return ("no standby answers",)

    def connect(_: Mapping[str, str]) -> Connection:
        return cast("Connection", _Server())

    def figures(*_: object) -> SlotStatus:
        return FIGURES

    ignored: Callable[..., Any] = lambda *_, **__: None  # noqa: E731
    monkeypatch.setattr(slot_poller, "limit_statements", ignored)
    monkeypatch.setattr(slot_poller, "read_slot_status", figures)
    monkeypatch.setattr(slot_poller, "failover_lacks", lacks)
    with SlotPoller({}, "s", 0.01, connect) as poller:
        assert asked.wait(60)
        assert poller.last == FIGURES
        answered.set()
        wait_until(lambda: poller.last is not None and poller.last.failover_lacks is not None, "what it lacks", 60)
