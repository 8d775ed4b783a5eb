"""``FragmentChain``: checks that no fragment of a source is missing, and remembers the last commit seen.

Each fragment names the offset that it ``follows``: nothing lies between that offset and the fragment. The chain is
complete up to its ``stream_cursor``. Fragments are checked in the order of ``follows``:

- ``last_log_offset`` at or below the cursor: a resend, nothing new.
- ``follows`` at or below the cursor: the next fragment. It moves the cursor to its ``last_log_offset``.
- ``follows`` above the cursor: a gap. It may contain a transaction that was never seen, and continuing would
  acknowledge that transaction, so a gap is an error.

A commit moves the cursor past its whole transaction, to ``(tx, ∞)``, because a resend may cut the transaction into
other fragments. A fragment with ``start`` follows the whole of the transaction in its ``follows``. If that transaction
is still open here, its end was confirmed but never seen, which is a gap too.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from flushtracker.errors import GapError
from flushtracker.tracking.packed_state import offset_from_json, offset_to_json, pack, unpack
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.lsn import format_lsn

_KAFKA_OFFSET: Final = " Kafka offset "
"""Separates the topic and partition from the record's offset in the ``place`` of a fragment read from Kafka."""


class Link(NamedTuple):
    """The fields of a fragment that the chain needs. ``place`` is its file, or topic, partition and Kafka offset."""

    follows: LogOffset
    last_log_offset: LogOffset
    start: bool
    is_commit: bool
    place: str


class FragmentChain:
    """The chain of one source. ``place`` is where the fragment that last moved the cursor was read.

    Without a ``stream_cursor`` (``None``) the first fragment must have ``start``: from there on everything was resent.

    >>> chain = FragmentChain("7301/1/shapes")
    >>> start = Link(LogOffset(99, 0), LogOffset(200, 4), start=True, is_commit=True, place="1.jsonl")
    >>> late = Link(LogOffset(200, 4), LogOffset(300, 0), start=False, is_commit=True, place="2.jsonl")
    >>> last = Link(LogOffset(300, 0), LogOffset(400, 2), start=False, is_commit=True, place="3.jsonl")
    >>> chain.extend([start])
    >>> chain.extend([last])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    flushtracker.errors.GapError: 3.jsonl: fragment 0/190+2 of source 7301/1/shapes follows 0/12C+0, but the chain ...
    >>> chain.extend([last, late, start])  # in any order; start is a resend
    >>> chain.last_seen_offset
    LogOffset(tx_offset=400, op_offset=2)
    """

    def __init__(
        self,
        source: str,
        stream_cursor: LogOffset | None = None,
        last_seen_offset: LogOffset | None = None,
        place: str = "",
    ) -> None:
        self.source = source
        self.stream_cursor = stream_cursor
        self.last_seen_offset = last_seen_offset
        self.place = place

    def extend(self, links: Iterable[Link]) -> None:
        """Apply one micro-batch, in any order; O(n log n).

        Raises:
            GapError: fragments are missing. The chain is unchanged.
        """
        ordered = sorted(links, key=_predecessor)
        if not ordered:
            return
        cursor = self.stream_cursor
        if cursor is None:
            first = min(ordered, key=lambda link: (link.follows, not link.start))
            if not first.start:
                raise self._no_start(first)
            cursor = _predecessor(first)
        last_seen, place = self.last_seen_offset, self.place
        for link in ordered:
            if _predecessor(link) > cursor:
                raise self._gap(link, cursor, place)
            reached = link.last_log_offset.reached(is_commit=link.is_commit)
            if reached > cursor:
                cursor, place = reached, link.place
            if link.is_commit and (last_seen is None or link.last_log_offset > last_seen):
                last_seen = link.last_log_offset
        self.stream_cursor = cursor
        self.last_seen_offset = last_seen
        self.place = place

    def pack(self) -> bytes:
        """The state as bytes: a version byte, then JSON; the inverse of :meth:`unpack`."""
        return pack([offset_to_json(self.stream_cursor), offset_to_json(self.last_seen_offset), self.place])

    @classmethod
    def unpack(cls, source: str, packed: bytes) -> "FragmentChain":
        """Read the output of :meth:`pack`; raises ``StateError`` if its version byte differs."""
        stream_cursor, last_seen_offset, place = unpack(packed)
        return cls(source, offset_from_json(stream_cursor), offset_from_json(last_seen_offset), place)

    def _no_start(self, link: Link) -> GapError:
        return GapError(
            f"{link.place}: the first fragment of source {self.source} follows {link.follows} and is not marked as a "
            f"start, so fragments before it may be missing"
        )

    def _gap(self, link: Link, cursor: LogOffset, place: str) -> GapError:
        message = (
            f"{link.place}: fragment {link.last_log_offset} of source {self.source} follows {link.follows}, but the "
            f"chain ends at {_format_cursor(cursor)}{f', read at {place}' if place else ''}; the fragments in between "
            f"are missing, and no ack passes the gap"
        )
        if _KAFKA_OFFSET in link.place and _KAFKA_OFFSET in place and _partition(link.place) != _partition(place):
            message += (
                f"; the fragments of one source are in two partitions, {_partition(place)} and "
                f"{_partition(link.place)}, so their order is undefined: key them by source"
            )
        return GapError(message)


def _predecessor(link: Link) -> LogOffset:
    """The offset that the chain must have reached before ``link``."""
    return LogOffset.last_of(link.follows.tx_offset) if link.start else link.follows


def _format_cursor(cursor: LogOffset) -> str:
    return f"transaction {format_lsn(cursor.tx_offset)}" if cursor.op_offset == OP_INFINITY else str(cursor)


def _partition(place: str) -> str:
    return place.partition(_KAFKA_OFFSET)[0]
