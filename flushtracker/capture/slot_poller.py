"""``SlotPoller``: reads the slot's figures every few seconds, over its own connection.

Capture's thread may be blocked by Kafka for minutes, which is when the slot's figures matter most.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from threading import Event, Thread
from typing import Final

from flushtracker.errors import PostgresError
from flushtracker.postgres.connection import Connection, connect, limit_statements
from flushtracker.postgres.failover_lacks import failover_lacks
from flushtracker.postgres.slot import read_slot_status
from flushtracker.process.clock import now_ms
from flushtracker.status.capture_status import SlotStatus
from flushtracker.status.document import replace

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 2.0
FAILOVER_INTERVAL_S: Final = 10.0
_STATEMENT_TIMEOUT_S: Final = 5.0
_STOP_TIMEOUT_S: Final = 1.0


class SlotPoller:
    """Reads the slot in a thread, as a context manager; reconnects when the connection is lost.

    While the server does not respond, :attr:`last` keeps the last figures, with their time.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        slot: str,
        interval_s: float = INTERVAL_S,
        connect: Callable[[Mapping[str, str]], Connection] = connect,
    ) -> None:
        self._options = options
        self._slot = slot
        self._interval_s = interval_s
        self._connect = connect
        self._stop = Event()
        self._has_failed = False
        self._lacks: tuple[str, ...] | None = None
        self._next_failover_s = 0.0
        self._thread = Thread(target=self._run, name="slot-poller", daemon=True)
        self.last: SlotStatus | None = None
        """The slot's last figures, for any thread; ``None`` before the first."""

    def __enter__(self) -> "SlotPoller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        # An unresponsive server must not delay the exit.
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._try_poll()
            self._stop.wait(self._interval_s)

    def _try_poll(self) -> None:
        try:
            self._poll()
        except PostgresError as error:
            # Before the first response, capture's own connection fails too, and capture logs why.
            if self.last is not None and not self._has_failed:
                logger.warning("slot not readable slot=%s reason=%s", self._slot, error)
            self._has_failed = True

    def _failover_lacks(self, connection: Connection) -> tuple[str, ...] | None:
        """What the slot lacks to survive a failover, checked less often; changes are logged."""
        if time.monotonic() < self._next_failover_s:
            return self._lacks
        self._next_failover_s = time.monotonic() + FAILOVER_INTERVAL_S
        lacks = failover_lacks(connection, self._options, self._slot, self._connect)
        if lacks != self._lacks:
            if lacks:
                logger.warning("slot would not survive a failover slot=%s reason=%s", self._slot, "; ".join(lacks))
            elif lacks is not None:
                logger.info("slot would survive a failover slot=%s", self._slot)
        self._lacks = lacks
        return lacks

    def _poll(self) -> None:
        """Read the slot until the connection is lost, or the poller is stopped."""
        with closing(self._connect(self._options)) as connection:
            limit_statements(connection, statement_timeout_s=_STATEMENT_TIMEOUT_S, lock_timeout_s=_STATEMENT_TIMEOUT_S)
            while not self._stop.is_set():
                found = read_slot_status(connection, self._slot, now_ms())
                if found is not None:
                    # First without the standbys: an unresponsive one would make the figures stale.
                    self.last = replace(found, failover_lacks=self._lacks)
                    self.last = replace(found, failover_lacks=self._failover_lacks(connection))
                    if self._has_failed:
                        logger.info("slot readable again slot=%s", self._slot)
                    self._has_failed = False
                self._stop.wait(self._interval_s)
