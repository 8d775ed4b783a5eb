"""``SlotTakeover``: starts the stream of a slot that another process may hold.

PostgreSQL lets one connection read a slot. The holder may be a capture that was just killed, until the server notices,
or an earlier connection of this process, which the server will drop. If another process holds the slot for longer, it
is another capture, and this one ends, unless it is configured to wait.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from flushtracker.errors import PostgresUnavailableError, SlotHeldError
from flushtracker.postgres.connection import Connection
from flushtracker.postgres.slot import SlotHolder, read_slot_holder

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 10.0
"""The server notices within milliseconds that a process was killed."""


class SlotTakeover:
    """One per process. With ``waits``, it waits for the slot as long as it takes."""

    def __init__(self, slot: str, *, waits: bool, now_s: Callable[[], float] = time.monotonic) -> None:
        self._slot = slot
        self._waits = waits
        self._now_s = now_s
        self._own_pid: int | None = None
        self._holder: SlotHolder | None = None
        self._held_since_s = 0.0

    def start(self, start: Callable[[], None], pid: int, control: Connection) -> None:
        """Call ``start``, which acquires the slot for the server's process ``pid``.

        Raises:
            PostgresUnavailableError: the slot is held, or the server is unavailable; a retry may help.
            SlotHeldError: another process has held the slot for too long.
        """
        try:
            start()
        except PostgresUnavailableError as error:
            holder = read_slot_holder(control, self._slot)
            if holder is not None and holder.pid != self._own_pid:
                self._handle_held(holder, error)
            raise
        self._own_pid, self._holder = pid, None

    def _handle_held(self, holder: SlotHolder, error: PostgresUnavailableError) -> None:
        """Raise the error for a slot held by another process, which may be retryable or final."""
        now_s = self._now_s()
        if holder != self._holder:
            self._holder, self._held_since_s = holder, now_s
            if self._waits:
                logger.warning("waiting for the slot slot=%s held_by=%s", self._slot, holder)
        fact = f"replication slot {self._slot} is held by {holder}"
        if self._waits or now_s - self._held_since_s < PATIENCE_S:
            raise PostgresUnavailableError(fact) from error
        raise SlotHeldError(
            f"{fact}: another capture runs. Stop one of the two, or start this one with --wait to take over when the "
            "other one ends"
        ) from error
