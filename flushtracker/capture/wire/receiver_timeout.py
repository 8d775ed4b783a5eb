"""``ReceiverTimeout``: when to request a reply from a silent server, and when to give up the connection.

The server reads what capture sends, and replies, whenever it is idle or sends data. While it decodes a large
transaction without published changes, it does neither, and reads only every half ``wal_sender_timeout``: with 5
minutes, it is silent for two and a half. So the limit is the whole timeout, counted from the request. With a shorter
limit capture would reconnect, the server would decode the transaction from its beginning, and so on forever.

With a ``wal_sender_timeout`` of 0 there is no limit. (PostgreSQL 15.18 and 18.6 then reply to a request at once while
they decode, but that is not documented.) It is safe to wait:

- an ack needs data that have arrived and been published, so silence acknowledges nothing; at worst the WAL grows;
- TCP detects a vanished peer, because status updates stay unacknowledged (``tcp_user_timeout``);
- a server process that hangs keeps the slot, so a new connection could not read it anyway.
"""

from typing import Final

from flushtracker.errors import PostgresUnavailableError

REPLY_REQUEST_S: Final = 20.0
"""A reply is requested after this long without a frame."""

SHORTEST_LIMIT_S: Final = 20.0
"""A server with a shorter ``wal_sender_timeout`` still has this long to reply: this end and the network may be slow."""


class ReceiverTimeout:
    """Counts how long the server has sent nothing; the caller passes the time.

    >>> limit = ReceiverTimeout(60.0, now_s=0.0)
    >>> [limit.is_reply_due(now_s) for now_s in (20.0, 21.0, 22.0, 81.0)]
    [False, True, False, False]
    >>> limit.is_reply_due(82.0)
    Traceback (most recent call last):
    flushtracker.errors.PostgresUnavailableError: the server has sent nothing for 82 s, and has not replied for 61 s; \
it has 60 s for that, by its wal_sender_timeout of 60 s
    """

    def __init__(self, wal_sender_timeout_s: float, now_s: float) -> None:
        self._wal_sender_timeout_s = wal_sender_timeout_s
        self._limit_s = max(SHORTEST_LIMIT_S, wal_sender_timeout_s) if wal_sender_timeout_s else None
        self._last_frame_s = now_s
        self._requested_s: float | None = None

    def handle_frames(self, now_s: float) -> None:
        self._last_frame_s, self._requested_s = now_s, None

    def is_reply_due(self, now_s: float) -> bool:
        """Whether to request a reply now; true once in each silence.

        Raises:
            PostgresUnavailableError: the server has not replied to the request in time.
        """
        if self._requested_s is None:
            if now_s - self._last_frame_s <= REPLY_REQUEST_S:
                return False
            self._requested_s = now_s
            return True
        waited_s = now_s - self._requested_s
        if self._limit_s is not None and waited_s > self._limit_s:
            raise PostgresUnavailableError(
                f"the server has sent nothing for {now_s - self._last_frame_s:.0f} s, and has not replied for "
                f"{waited_s:.0f} s; it has {self._limit_s:g} s for that, by its wal_sender_timeout of "
                f"{self._wal_sender_timeout_s:g} s"
            )
        return False
