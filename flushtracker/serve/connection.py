"""``Connection``: uvicorn's HTTP protocol, with limits for clients that are slow or many."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 15.0
"""A connection is closed if no complete request line and headers arrive within this time."""

_SPARE: Final = 100
"""Connections over the limit that are answered with a 503; more are closed."""


class Connection(H11Protocol):
    """One client's connection; ``limit`` is set for a server's own class."""

    limit = 10_000

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late: asyncio.TimerHandle | None = None
        self.app_state = {**self.app_state, "connection": self}
        self.is_over_limit = len(self.connections) > self.limit
        """Whether more connections were open than are served when this one was opened."""
        if len(self.connections) > self.limit + _SPARE:
            transport.abort()
        else:
            self._expect_request()

    def data_received(self, data: bytes) -> None:
        self._expect_request()
        super().data_received(data)
        if self._is_answering:
            self._stop_expecting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close it at once, whatever has been written and not been sent."""
        self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _expect_request(self) -> None:
        """From the first byte on: an idle connection is closed by uvicorn's own timeout, which each byte resets."""
        if self._late is None and not self._is_answering:
            self._late = self.loop.call_later(REQUEST_S, self._close_if_late)

    def _stop_expecting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close_if_late(self) -> None:
        self._late = None
        if not self._is_answering:
            self.transport.abort()
