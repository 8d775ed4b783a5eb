"""The chain of a source's fragments: is each one's predecessor known, and which commit was seen last?

Each fragment says after which offset it ``follows``, that is: nothing lies between. Taken in that order, a fragment
whose ``last_log_offset`` is at or below ``stream_cursor`` is resent and brings nothing new; one that follows an offset
at or below the cursor is next; any other leaves a gap, in which there may be a transaction that nobody has seen.
Going on would acknowledge it, so a gap is an error.

A commit moves the cursor past all of its transaction, to ``(tx, ∞)``. A fragment with ``start`` follows all of the
transaction that it names: whoever confirmed that one while it was still open here knew of an end that is missing.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from flushtracker.errors import GapError
from flushtracker.tracking.packed_state import offset_from_json, offset_to_json, pack, unpack
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.lsn import format_lsn

_KAFKA_OFFSET: Final = " Kafka offset "
"""What stands in a place between a partition and the record's place in it."""


class Link(NamedTuple):
    """What the chain reads of a fragment. ``place`` is where it was read: a file, or topic, partition, Kafka offset."""

    follows: LogOffset
    last_log_offset: LogOffset
    start: bool
    is_commit: bool
    place: str


class FragmentChain:
    """``stream_cursor`` is how far the fragments taken have reached, ``None`` before the first.

    With no cursor the first fragment must have ``start``: from there on everything was sent again. ``place`` is where
    the fragment was read that moved the cursor last.
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
        """Take one micro-batch, in any order; O(n log n).

        Raises:
            GapError: a fragment connects to nothing; neither cursor nor last seen offset have moved.
        """
        ordered = sorted(links, key=_follows)
        if not ordered:
            return
        cursor = self.stream_cursor
        if cursor is None:
            first = min(ordered, key=lambda link: (link.follows, not link.start))
            if not first.start:
                raise self._no_start(first)
            cursor = _follows(first)
        last_seen, place = self.last_seen_offset, self.place
        for link in ordered:
            if _follows(link) > cursor:
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
        """Read what :meth:`pack` wrote; raises ``StateError`` for another version's bytes."""
        stream_cursor, last_seen_offset, place = unpack(packed)
        return cls(source, offset_from_json(stream_cursor), offset_from_json(last_seen_offset), place)

    def _no_start(self, link: Link) -> GapError:
        return GapError(
            f"{link.place}: the first fragment of source {self.source} follows {link.follows} and is not marked as a "
            f"start, so what came before it is unknown"
        )

    def _gap(self, link: Link, cursor: LogOffset, place: str) -> GapError:
        message = (
            f"{link.place}: fragment {link.last_log_offset} of source {self.source} follows {link.follows}, but what "
            f"was seen ends with {_end(cursor)}{f', read at {place}' if place else ''}; what lies between is missing, "
            f"and nothing past it is acknowledged"
        )
        if _KAFKA_OFFSET in link.place and _KAFKA_OFFSET in place and _partition(link.place) != _partition(place):
            message += (
                f"; the fragments of one source are in two partitions, {_partition(place)} and "
                f"{_partition(link.place)}, so they come in no order: key them by source"
            )
        return GapError(message)


def _follows(link: Link) -> LogOffset:
    """The offset after which nothing was left out before ``link``."""
    return LogOffset.last_of(link.follows.tx_offset) if link.start else link.follows


def _end(cursor: LogOffset) -> str:
    return f"transaction {format_lsn(cursor.tx_offset)}" if cursor.op_offset == OP_INFINITY else str(cursor)


def _partition(place: str) -> str:
    return place.partition(_KAFKA_OFFSET)[0]
