"""``FragmentChain``: checks that no fragment of a source is missing, and remembers the last commit seen.

Each fragment names the offset that it ``follows``: nothing lies between that offset and the fragment. The chain is
complete up to its ``stream_cursor``. Fragments are checked in the order of ``follows``:

- ``last_log_offset`` at or below the cursor: a resend, nothing new.
- ``follows`` at or below the cursor: the next fragment. It moves the cursor to its ``last_log_offset``.
- ``follows`` above the cursor: a gap. It may contain a transaction that was never seen, and continuing would
  acknowledge that transaction, so a gap is an error. The error is permanent: the shapes' groups may have read past the
  gap and would ignore a resend, so only a new checkpoint helps (:meth:`FragmentChain.extend_or_break`).

A commit moves the cursor past its whole transaction, to ``(tx, ∞)``, because a resend may cut the transaction into
other fragments. A fragment with ``start`` follows the whole transaction of its ``follows``, and so does the first
fragment of a transaction. If the transaction before is still open here, its end was never seen: a gap too.

A list part (:mod:`~flushtracker.wal.shape_list`) ends past all operations of its transaction, but has only those of the
shapes that it lists. So after one, the chain also tracks how far the *operations* have been read, and finds gaps
between them. It cannot notice that fragments are missing together with the first list part after them, if a list part
of another run was read before.
"""

from typing import Final

import numpy as np

from flushtracker.errors import GapError
from flushtracker.tracking.chain_links import ChainLinks, Link
from flushtracker.tracking.offset_columns import NO_TX, OffsetColumns, at_most, greatest, starts_of_runs
from flushtracker.tracking.packed_columns import Ints
from flushtracker.tracking.packed_state import (
    JSON_VERSION,
    check_version,
    offset_from_json,
    offset_to_json,
    pack,
    unpack,
)
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.shape_list import FIRST_LISTED, LAST_LISTED, is_list

_KAFKA_OFFSET: Final = " Kafka offset "
"""Separates the topic and partition from the record's offset in the ``place`` of a fragment read from Kafka."""


class FragmentChain:
    """The chain of one source. ``place`` is where the fragment that last moved the cursor was read.

    Without a ``stream_cursor`` (``None``) the first fragment must have ``start``, from which everything is resent.

    >>> chain = FragmentChain("7301/1/shapes")
    >>> start = Link(LogOffset(99, 0), LogOffset(200, 4), start=True, is_commit=True, place="1.jsonl")
    >>> late = Link(LogOffset(200, 4), LogOffset(300, 0), start=False, is_commit=True, place="2.jsonl")
    >>> last = Link(LogOffset(300, 0), LogOffset(400, 2), start=False, is_commit=True, place="3.jsonl")
    >>> chain.extend(ChainLinks.of([start]))
    >>> chain.extend(ChainLinks.of([last]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    flushtracker.errors.GapError: 3.jsonl: fragment 0/190+2 of source 7301/1/shapes follows 0/12C+0, but the chain ...
    >>> chain.extend(ChainLinks.of([last, late, start]))  # in any order; start is a resend
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
        self.operations: LogOffset | None = None
        """How far operations have been read, once a list part has moved the cursor."""
        self.gap: str | None = None
        """The first gap that :meth:`extend_or_break` found."""

    def extend_or_break(self, links: ChainLinks) -> None:
        """:meth:`extend`, but a gap is kept in ``gap``. From then on nothing is applied, not even a start."""
        if self.gap is None:
            try:
                self.extend(links)
            except GapError as error:
                self.gap = str(error)

    def extend(self, links: ChainLinks) -> None:
        """Apply one micro-batch, in any order; O(n log n).

        Raises:
            GapError: fragments are missing. The chain is unchanged.
        """
        if not len(links):
            return
        before_tx, before_op = links.predecessors()
        order = np.lexsort((before_op, before_tx))
        cursor = self.stream_cursor
        if cursor is None:
            first = links[links.first()]
            if not first.start:
                raise self._no_start(first)
            cursor = first.predecessor
        tx, op = links.reached()
        furthest = _furthest((tx[order], op[order]))
        # Find a link that begins past the cursor and past everything that the links before it have reached.
        needed = (before_tx[order], before_op[order])
        is_late = ~at_most(needed, cursor)
        reached = order[furthest[:-1]]
        is_late[1:] &= ~at_most((needed[0][1:], needed[1][1:]), (tx[reached], op[reached]))
        if is_late.any():
            late = int(np.argmax(is_late))
            cursor, place = self._after(links, order[furthest[late - 1]] if late else None, cursor)
            raise self._gap(links[order[late]], cursor, place)
        operations = self._read_operations(links, order, needed, cursor)
        self.stream_cursor, self.place = self._after(links, order[furthest[-1]], cursor)
        self.operations = operations if is_list(self.stream_cursor.op_offset) else None
        commits = links.commits()
        if len(commits[0]):
            self.last_seen_offset = max(greatest(commits), self.last_seen_offset or LogOffset.before_all())

    def _read_operations(self, links: ChainLinks, order: Ints, needed: OffsetColumns, cursor: LogOffset) -> LogOffset:
        """How far operations have been read after the links, in this ``order``; ``needed`` are their predecessors,
        sorted.

        Raises:
            GapError: some are missing.
        """
        start = cursor if self.operations is None else self.operations
        tx, op = (column[order] for column in links.reached())
        is_part = (op >= FIRST_LISTED) & (op <= LAST_LISTED)
        if self.operations is None and not is_part.any():
            return start
        tx, op = np.append(start.tx_offset, np.where(is_part, NO_TX, tx)), np.append(start.op_offset, op)
        furthest = _furthest((tx, op))
        before = tx[furthest[:-1]], op[furthest[:-1]]
        is_late = (needed[1] < FIRST_LISTED) & ~at_most(needed, before)
        if is_late.any():
            late = int(np.argmax(is_late))
            raise self._gap(links[order[late]], LogOffset(int(before[0][late]), int(before[1][late])), "")
        return LogOffset(int(tx[furthest[-1]]), int(op[furthest[-1]]))

    def _after(self, links: ChainLinks, furthest: int | None, cursor: LogOffset) -> tuple[LogOffset, str]:
        """The cursor after the link that reaches furthest, and the place of the fragment that moved it."""
        if furthest is not None:
            link = links[furthest]
            reached = link.last_log_offset.reached(is_commit=link.is_commit)
            if reached > cursor:
                return reached, link.place
        return cursor, self.place

    def pack(self) -> bytes:
        """The state as bytes: a version byte, then JSON; the inverse of :meth:`unpack`."""
        fields = [offset_to_json(self.stream_cursor), offset_to_json(self.last_seen_offset), self.place]
        fields += [offset_to_json(self.operations), self.gap]
        while fields[-1] is None:  # the last two, in most chains
            fields.pop()
        return pack(fields)

    @classmethod
    def unpack(cls, source: str, packed: bytes) -> "FragmentChain":
        """Read the output of :meth:`pack`; raises ``StateError`` if its version byte differs."""
        stream_cursor, last_seen_offset, place, *rare = unpack(packed)
        chain = cls(source, offset_from_json(stream_cursor), offset_from_json(last_seen_offset), place)
        operations, chain.gap = [*rare, None, None][:2]
        chain.operations = offset_from_json(operations)
        return chain

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


def check_chain_version(packed: bytes) -> None:
    """Raise ``StateError`` unless the first byte of ``packed`` is the version of a chain's state."""
    check_version(packed, JSON_VERSION)


def _furthest(offsets: OffsetColumns) -> Ints:
    """For each offset, the index of the greatest so far, the first of equals."""
    tx, op = offsets
    order = np.lexsort((op, tx))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(starts_of_runs(tx[order], op[order]))
    is_new = np.ones(len(rank), np.bool_)
    highest = np.maximum.accumulate(rank)
    np.greater(rank[1:], highest[:-1], out=is_new[1:])
    return np.maximum.accumulate(np.where(is_new, np.arange(len(rank)), 0))


def _format_cursor(cursor: LogOffset) -> str:
    return f"transaction {format_lsn(cursor.tx_offset)}" if cursor.op_offset == OP_INFINITY else str(cursor)


def _partition(place: str) -> str:
    return place.partition(_KAFKA_OFFSET)[0]
