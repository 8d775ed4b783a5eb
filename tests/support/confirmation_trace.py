"""``ConfirmationTrace``: what capture has confirmed to its server, by its own log, judged against the ack table.

With ``--verbose --log-format json`` capture logs each advance of the position that it reports (``slot confirmed``), and
where each connection begins (``capturing``). A violation is an ``AssertionError``:

- a connection's positions rise, and begin at the slot's own;
- each is at most one past an ack that the table had by then (``SlotFollowsAck``), or is not past where the slot began;
- the slot has no position that capture has not reported.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from flushtracker.tracking.acks.ack_reader import Ack
from flushtracker.wal.lsn import format_lsn, parse_lsn

BEGIN: Final = "capturing"
CONFIRMED: Final = "slot confirmed"


class ConfirmationTrace:
    """Traces one slot, which began at ``first_lsn``. ``connections`` and ``confirmations`` count what was judged."""

    def __init__(self, log: Path, first_lsn: int) -> None:
        self.greatest_lsn = first_lsn
        """What the slot may have been told."""
        self.connections = self.confirmations = 0
        self._log = log
        self._first_lsn = first_lsn
        self._read_bytes = 0
        self._connection_lsn = first_lsn
        self._waiting: list[dict[str, Any]] = []

    def poll(self) -> None:
        """Read what capture has logged since the last time."""
        for event in self._events():
            position = parse_lsn(event["confirmed_lsn"])
            begins = event["message"].startswith(BEGIN)
            assert begins or position > self._connection_lsn, (
                f"capture confirmed {format_lsn(position)} after {format_lsn(self._connection_lsn)}"
            )
            self._connection_lsn = position
            self.greatest_lsn = max(self.greatest_lsn, position)
            if begins:
                self.connections += 1
            else:
                self._waiting.append(event)

    def check(self, acks: Sequence[Ack]) -> None:
        """Judge what was confirmed up to the last :meth:`poll`, with all acks that there were after it, in order."""
        # When an ack was made is noted before it is committed.
        times = [ack.acked_at for ack in acks]
        for event in self._waiting:
            position, at = parse_lsn(event["confirmed_lsn"]), _time(event["timestamp"])
            before = acks[: bisect_left(times, at)]
            bound = max(self._first_lsn, before[-1].ack_lsn + 1 if before else -1)
            assert position <= bound, (
                f"capture confirmed {format_lsn(position)} at {at}, when at most {format_lsn(bound)} was acknowledged"
            )
            self.confirmations += 1
        self._waiting = []

    def _events(self) -> Iterable[dict[str, Any]]:
        if not self._log.exists():
            return
        with self._log.open("rb") as log:
            log.seek(self._read_bytes)
            # What is still being written ends in no newline.
            text = log.read()
        lines = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(lines)
        for line in lines.splitlines():
            # A kill may have cut a line, which the next process continues with its first one.
            event = _parsed(line)
            if "confirmed_lsn" in event and event["message"].startswith((BEGIN, CONFIRMED)):
                yield event


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return event


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
