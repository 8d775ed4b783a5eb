"""The chain of a source's fragments: is each one's predecessor known, and which commit was seen last?

Each fragment says after which offset it ``follows``, that is: nothing lies between. Taken in that order, a fragment
whose ``last_log_offset`` is at or below ``stream_cursor`` is resent and brings nothing new; one that follows an offset
at or below the cursor is next; any other leaves a hole, in which there may be a transaction that nobody has seen.
Going on would acknowledge it, so a hole is an error.
"""

from collections.abc import Iterable
from typing import NamedTuple

from flushtracker.errors import HoleError
from flushtracker.log_offset import LogOffset
from flushtracker.packed_state import offset_from_json, offset_to_json, pack, unpack


class Link(NamedTuple):
    """What the chain reads of a fragment. ``place`` is where it was read: a file, or topic, partition, Kafka offset."""

    follows: LogOffset
    last_log_offset: LogOffset
    start: bool
    is_commit: bool
    place: str


class FragmentChain:
    """``stream_cursor`` is the ``last_log_offset`` of the last fragment taken, ``None`` before the first.

    With no cursor the first fragment must have ``start``: from there on everything was sent again.
    """

    def __init__(
        self, source: str, stream_cursor: LogOffset | None = None, last_seen_offset: LogOffset | None = None
    ) -> None:
        self.source = source
        self.stream_cursor = stream_cursor
        self.last_seen_offset = last_seen_offset

    def extend(self, links: Iterable[Link]) -> None:
        """Take one micro-batch, in any order; O(n log n).

        Raises:
            HoleError: a fragment connects to nothing; neither cursor nor last seen offset have moved.
        """
        ordered = sorted(links, key=lambda link: (link.follows, not link.start))
        if not ordered:
            return
        cursor = self.stream_cursor
        if cursor is None:
            if not ordered[0].start:
                raise self._no_start(ordered[0])
            cursor = ordered[0].follows
        last_seen = self.last_seen_offset
        for link in ordered:
            if link.follows > cursor:
                raise self._hole(link, cursor)
            cursor = max(cursor, link.last_log_offset)
            if link.is_commit and (last_seen is None or link.last_log_offset > last_seen):
                last_seen = link.last_log_offset
        self.stream_cursor = cursor
        self.last_seen_offset = last_seen

    def pack(self) -> bytes:
        """The state as bytes: a version byte, then JSON; the inverse of :meth:`unpack`."""
        return pack([offset_to_json(self.stream_cursor), offset_to_json(self.last_seen_offset)])

    @classmethod
    def unpack(cls, source: str, packed: bytes) -> "FragmentChain":
        """Read what :meth:`pack` wrote; raises ``StateError`` for another version's bytes."""
        return cls(source, *map(offset_from_json, unpack(packed)))

    def _no_start(self, link: Link) -> HoleError:
        return HoleError(
            f"{link.place}: the first fragment of source {self.source} follows {link.follows} and is not marked as a "
            f"start, so what came before it is unknown; restart capture, which then sends everything unconfirmed again"
        )

    def _hole(self, link: Link, cursor: LogOffset) -> HoleError:
        return HoleError(
            f"{link.place}: fragment {link.last_log_offset} of source {self.source} follows {link.follows}, but the "
            f"last one seen is {cursor}; what lies between is missing, and nothing past it is acknowledged: bring it "
            f"back, or restart capture, which then sends everything unconfirmed again"
        )
