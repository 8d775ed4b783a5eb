"""When a drain seals the slot, and what it waits for, without a server."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from flushtracker.capture.source import upgrade_drain
from flushtracker.capture.source.upgrade_drain import UpgradeDrain
from flushtracker.errors import BrokerUnavailableError, PostgresError
from flushtracker.postgres.upgrade_seal import NewSeal
from flushtracker.status.upgrade_facts import UpgradeFacts
from tests.support.slot_overviews import FACTS, slot
from tests.support.status_pages import ACK

UNSEALED = structs.replace(FACTS, sealed_lsn=None)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in order; the slot is confirmed to the end, and nothing is open."""
    done: list[str] = []
    see(monkeypatch, UNSEALED)
    monkeypatch.setattr(upgrade_drain, "read_slot_status", lambda *_: slot())
    monkeypatch.setattr(upgrade_drain, "create_seal", lambda *_: seal_at(done, ACK + 1))
    monkeypatch.setattr(upgrade_drain, "drop_seals", lambda *_: done.append("drop"))
    return done


def see(monkeypatch: pytest.MonkeyPatch, facts: UpgradeFacts) -> None:
    monkeypatch.setattr(upgrade_drain, "read_upgrade_facts", lambda *_: facts)


def seal_at(done: list[str], lsn: int) -> NewSeal:
    done.append("seal")
    return NewSeal("flushtracker_93dba512_from_7_d4a1", "d4a1", lsn)


def drain(done: list[str], record: Callable[[str], None] | None = None) -> UpgradeDrain:
    connection: Any = None
    return UpgradeDrain(connection, "shapes", "7", lambda: done.append("compare"), record or done.append)


def test_a_seal_is_recorded_before_the_drain_is_done(steps: list[str]) -> None:
    """Otherwise a server could be upgraded whose seal proves nothing."""
    assert drain(steps).is_done()
    assert steps == ["compare", "seal", "d4a1"]


def test_a_drain_whose_record_is_not_confirmed_fails(steps: list[str]) -> None:
    """It is not done: capture is to be started again."""

    def fail(_: str) -> None:
        raise BrokerUnavailableError("no broker answers")

    with pytest.raises(BrokerUnavailableError):
        drain(steps, fail).is_done()


def test_a_seal_past_what_was_compared_is_dropped(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was confirmed meanwhile may have altered a table; nothing is recorded."""
    monkeypatch.setattr(upgrade_drain, "create_seal", lambda *_: seal_at(steps, ACK + 50))
    assert not drain(steps).is_done()
    assert steps == ["compare", "seal", "drop"]


def test_a_server_without_a_free_slot_is_refused_at_once(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when everything is confirmed and the applications have long been stopped."""
    see(monkeypatch, structs.replace(UNSEALED, free_slots=0, open_transactions=1))
    with pytest.raises(PostgresError, match=r"no free slot for the seal of slot shapes: .* max_replication_slots"):
        drain(steps).is_done()
    assert steps == []
