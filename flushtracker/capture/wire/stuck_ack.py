"""``StuckAck``: when to warn that an ack does not move although much was published past it.

While the tracking job is down, or a shape holds the ack, capture continues to publish without an error, and the server
keeps all WAL from the ack on. Capture knows both positions, even if its status is not monitored.
"""

from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 60.0
"""How long the ack must be stuck before the first warning; the next ones follow at twice this, four times, …"""
LEAST_BYTES: Final = 16 * 2**20
"""How much must have been published past it: a WAL segment, which a slot may retain at any time."""
_LONGEST_INTERVAL_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class StuckAckNotice:
    """What to log: the ack has been stuck at ``ack_lsn`` for ``seconds``; or, if ``is_over``, it has just moved
    there.
    """

    ack_lsn: int
    published_lsn: int
    seconds: float
    is_over: bool = False

    @property
    def behind_bytes(self) -> int:
        return max(0, self.published_lsn - self.ack_lsn)


class StuckAck:
    """The ack of one source, kept across connections, so that reconnects do not repeat a warning.

    >>> stuck = StuckAck()
    >>> [stuck.check(100, 100, 0.0), stuck.check(100, 2**25, 1.0), stuck.check(100, 2**25, 59.0)]
    [None, None, None]
    >>> stuck.check(100, 2**25, 60.0)
    StuckAckNotice(ack_lsn=100, published_lsn=33554432, seconds=60.0, is_over=False)
    >>> stuck.check(200, 2**25, 65.0)
    StuckAckNotice(ack_lsn=200, published_lsn=33554432, seconds=65.0, is_over=True)
    """

    def __init__(self, first_s: float = FIRST_S) -> None:
        self._first_s = first_s
        self._ack_lsn: int | None = None
        self._since_s = 0.0
        self._warnings = 0
        self._next_s = 0.0

    def check(self, ack_lsn: int, published_lsn: int, now_s: float) -> StuckAckNotice | None:
        """What to log at ``now_s``, if anything; the time counts from when nothing was published past the ack."""
        # A new connection starts with the slot's confirmed position, which may be less.
        ack_lsn = ack_lsn if self._ack_lsn is None else max(ack_lsn, self._ack_lsn)
        if ack_lsn != self._ack_lsn or published_lsn <= ack_lsn:
            has_warned, since_s = self._warnings > 0, self._since_s
            self._ack_lsn, self._since_s, self._warnings, self._next_s = ack_lsn, now_s, 0, now_s + self._first_s
            return StuckAckNotice(ack_lsn, published_lsn, now_s - since_s, is_over=True) if has_warned else None
        if now_s < self._next_s or published_lsn - ack_lsn <= LEAST_BYTES:
            return None
        self._next_s = now_s + min(self._first_s * 2**self._warnings, _LONGEST_INTERVAL_S)
        self._warnings += 1
        return StuckAckNotice(ack_lsn, published_lsn, now_s - self._since_s)
