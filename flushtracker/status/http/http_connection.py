"""``HttpConnection``: uvicorn's HTTP protocol, with limits for clients that are slow, many, or ahead of their answers.

A connection buffers at most :data:`HEADER_BYTES` and one read of pipelined requests, and one part of an answer that its
client is not reading. So the number of connections bounds the total.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_BYTES: Final = 32 << 10
"""The maximum size of an address and headers."""

REQUEST_S: Final = 15.0
"""A connection is closed if no complete request line and headers arrive within this time."""

SPARE: Final = 100
"""Connections over the limit that are answered with a 503; further ones are closed."""

_READ_BYTES: Final = 16 << 10


class _ReadBuffer(threading.local):
    """A buffer for the connections of each thread's event loop, because reading into it releases the interpreter."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ_BYTES))


class _Sent:
    """In place of data that the socket already has."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


class Client:
    """What an application may know and do with a connection. It does not reference the connection, so it does not keep
    it alive.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection, *, is_over_limit: bool) -> None:
        self._transport = transport
        self._conn = conn
        self.is_over_limit = is_over_limit
        """Whether the limit of connections was exceeded when this one was opened."""

    @property
    def is_closing(self) -> bool:
        """Whether it is closed, or is about to be: asyncio logs a line for each write to one that has failed."""
        return self._transport.is_closing()

    def abort(self) -> None:
        """Close it at once, discarding unsent data."""
        self._transport.abort()

    @property
    def has_unsent(self) -> bool:
        """Whether the next part of an answer waits until the kernel has taken the one before."""
        return self._transport.get_write_buffer_size() > 0

    def send_directly(self, send: Callable[[int], int]) -> int:
        """Have ``send`` write the next part of an answer's body to a socket by its descriptor; return how much it took.

        That is 0 while data before it is unsent, and if ``send`` raises ``OSError``: it is then to be sent as usual.
        """
        if self._transport.is_closing() or self.has_unsent:
            return 0
        try:
            length = send(self._transport.get_extra_info("socket").fileno())
        except OSError:
            return 0
        data: Any = _Sent(length)
        self._conn.send_with_data_passthrough(h11.Data(data=data))
        return length


class _Flow(FlowControl):
    """Pauses reading while ``is_ahead``: uvicorn resumes after each answer, whatever it has read by then."""

    def __init__(self, transport: asyncio.Transport, is_ahead: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._is_ahead = is_ahead

    def resume_reading(self) -> None:
        if not self._is_ahead():
            super().resume_reading()


class HttpConnection(H11Protocol, asyncio.BufferedProtocol):
    """One client's connection; ``limit`` is set in a server's subclass."""

    limit = 10_000
    _read_buffer = _ReadBuffer()
    """Shared by all connections of a loop: data read into it is processed at once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        conn = self.conn
        self.flow = _Flow(transport, lambda: len(conn.trailing_data[0]) > HEADER_BYTES)
        # The next part of an answer is written once the previous one has been sent.
        transport.set_write_buffer_limits(high=0)
        self._late: asyncio.TimerHandle | None = None
        client = Client(transport, conn, is_over_limit=len(self.connections) > self.limit)
        self.app_state = {**self.app_state, "connection": client}
        if len(self.connections) > self.limit + SPARE:
            transport.abort()
        else:
            self._expect_request()

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._read_buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._read_buffer.view[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self._expect_request()
        super().data_received(data)
        if self._is_answering:
            self._stop_expecting()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request; if a previous request is still being answered, only close the connection."""
        if self._is_answering:
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)
        # uvicorn leaves it after a reset, and with it everything that this connection has read.
        self._unset_keepalive_if_required()

    @property
    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _expect_request(self) -> None:
        """Starts with the first byte: uvicorn's own timeout, which each byte resets, closes idle connections."""
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
