"""When a capture gives up a slot that another process holds, and when it waits for it."""

from collections.abc import Iterable
from typing import Any

import pytest

from flushtracker.capture.wire import slot_takeover
from flushtracker.capture.wire.slot_takeover import PATIENCE_S, SlotTakeover
from flushtracker.errors import PostgresUnavailableError, SlotHeldError
from flushtracker.postgres.slot import SlotHolder

OTHER = SlotHolder(7, "flushtracker_capture", "10.0.0.5", "2026-11-24 08:00:00Z")
THIRD = SlotHolder(8, None, None, "2026-11-24 09:00:00Z")
HIDDEN = SlotHolder(9, None, None, None)


class Contest:
    """A slot with the holders that a test sets, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, waits: bool = False) -> None:
        self.now_s = 1000.0
        self.holder: SlotHolder | None = None
        self.takeover = SlotTakeover("s", waits=waits, now_s=lambda: self.now_s)
        self.control: Any = None
        monkeypatch.setattr(slot_takeover, "read_slot_holder", lambda *_: self.holder)

    def attempt(self, holder: SlotHolder | None, pid: int = 5) -> str:
        """Try to start; the kind of error, or nothing."""
        self.holder = holder

        def start() -> None:
            if holder is not None:
                raise PostgresUnavailableError("in use")

        try:
            self.takeover.start(start, pid, self.control)
        except (PostgresUnavailableError, SlotHeldError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def attempts(self, holders: Iterable[SlotHolder | None], step_s: float) -> list[str]:
        """An attempt for each holder, every ``step_s``: the kinds of errors."""
        kinds = []
        for holder in holders:
            kinds.append(self.attempt(holder).partition(":")[0])
            self.now_s += step_s
        return kinds


RETRY, FINAL = "PostgresUnavailableError", "SlotHeldError"


def test_a_slot_that_stays_held_is_given_up_with_who_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once: the server may not have noticed yet that the last capture was killed."""
    contest = Contest(monkeypatch)
    assert contest.attempts([OTHER, OTHER], PATIENCE_S / 2) == [RETRY, RETRY]
    assert contest.attempt(OTHER).startswith(
        "SlotHeldError: replication slot s is held by process 7 (flushtracker_capture, from 10.0.0.5, since "
        "2026-11-24 08:00:00Z): another capture runs."
    )


def test_each_holder_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage of the server, a holder from before it must not count; its words fit what is known of it."""
    contest = Contest(monkeypatch)
    assert contest.attempts([OTHER, THIRD, HIDDEN, HIDDEN], PATIENCE_S) == [RETRY, RETRY, RETRY, FINAL]
    assert "process 9 (this role may not see whose that is" in contest.attempt(HIDDEN)
    assert "process 8 (without application_name, from a local socket, since" in contest.attempt(THIRD)


def test_a_slot_that_is_released_in_time_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patience begins again when the slot is lost later."""
    contest = Contest(monkeypatch)
    assert contest.attempts([OTHER, None], PATIENCE_S - 1) == [RETRY, ""]
    contest.now_s += 10 * PATIENCE_S
    assert contest.attempts([OTHER, OTHER], PATIENCE_S) == [RETRY, FINAL]


def test_the_own_connection_that_was_lost_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server drops it after its wal_sender_timeout; until then the slot is this process's own."""
    contest = Contest(monkeypatch)
    assert contest.attempt(None, pid=OTHER.pid) == ""
    assert contest.attempts([OTHER] * 10, PATIENCE_S) == [RETRY] * 10


def test_who_was_told_to_wait_does_so_and_logs_each_holder_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a stand-by."""
    contest = Contest(monkeypatch, waits=True)
    assert contest.attempts([OTHER, OTHER, THIRD, OTHER, OTHER], PATIENCE_S) == [RETRY] * 5
    assert [record.args for record in caplog.records] == [("s", OTHER), ("s", THIRD), ("s", OTHER)]
