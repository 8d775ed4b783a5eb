"""``ShapeSnapshot``: the rows that a shape had at one moment, in its log, and which of its transactions they contain.

The rows are items ``insert`` before every transaction, at ``(0, n)``, and after them one row :data:`SNAPSHOT` at
``(0, ∞)``; all are appended in one commit. The ``chunk`` of each is the attempt. A snapshot taken again has a greater
one, and replaces the snapshot before: rows at ``tx_offset`` 0 of other attempts do not count.

A shape's transactions are appended whether or not its snapshot contains them. Readers leave out those that it contains
(:meth:`ShapeSnapshot.contains`), so nobody has to wait for a snapshot, and none is wrong because it was slow. Which
these are follows from PostgreSQL's rule of visibility, not from an LSN: transactions do not become visible in the order
of their commits in the WAL.

Every later attempt must contain all that an earlier one contains, because upkeep deletes what a fold contains.

A **fold** is a snapshot that upkeep makes of the log itself: the rows after every transaction up to ``lsn``, its
*horizon*. It contains all of them, seen or unseen, so it has no rule of visibility. A snapshot that is taken after it
may lack some: PostgreSQL writes a commit to the WAL, from where it is delivered and folded, before the transaction
becomes visible, and a commit that waits for a synchronous standby may stay so for any time. Their rows are deleted, so
such a snapshot must not replace the fold (:meth:`ShapeSnapshot.may_replace`). Whoever has followed the snapshot that a
fold was made from may follow the fold, too; who has followed an earlier one never had those rows.

A shape that is resynced goes on in the same log, as its next **incarnation**, all of whose transactions commit above
``starts_after``. A snapshot of it contains every transaction up to there, so all that the log has of the incarnation
before is left out, by the same rule. Until there is one, a **mark** keeps the two apart: a row ``snapshot`` without
rows and without a rule, which a writer has appended before the first changes of the incarnation. With it the shape
cannot be read, by any reader.
"""

from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from flushtracker.errors import DecodeError
from flushtracker.events.event_json import EventReader, dump_json
from flushtracker.events.structs import MAX_BIGINT, Incarnation, Natural
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.mvcc_snapshot import MvccSnapshot

_LSN_ALIGNMENT: Final = 8
"""PostgreSQL begins each record of the WAL, and so each commit, at a multiple of this."""

_NO_RULE: Final = MvccSnapshot(1, 1)
"""What a fold has as ``visible``, with ``next_xid`` 1. By the rule for readers, it contains all up to ``lsn``."""

SNAPSHOT: Final = "snapshot"
"""The operation of the row that ends a snapshot."""


ShapeKey = tuple[str, str]
"""Source and shape id."""


class _Mark(Struct):
    """The value of a mark."""

    lsn: Natural
    incarnation: Incarnation


class _Value(Struct, kw_only=True, omit_defaults=True):
    """The value of a row ``snapshot``; only a fold has ``folded``, only a later incarnation ``starts_after``."""

    xmin: Natural
    xmax: Natural
    xip: tuple[Natural, ...]
    lsn: Natural
    next: Natural
    unseen: tuple[tuple[int, int], ...]
    folded: Natural | None = None
    made_from: Natural | None = None
    incarnation: Incarnation = 1
    starts_after: Natural | None = None


_MARKS: Final = EventReader("value", _Mark)
_VALUES: Final = EventReader("value", _Value)


@dataclass(frozen=True, slots=True)
class ShapeSnapshot:
    """The snapshot of one ``attempt``: the rows that ``visible`` saw.

    ``lsn`` is the end of the WAL after ``visible`` was taken: what commits above it is not in the snapshot.
    ``next_xid`` was assigned after that, so what commits at or below ``lsn`` has a lower xid, of 64 bits.
    ``folded_xid`` is that of a fold: the last xid of the transactions that it contains. ``made_from`` is a fold's, too:
    the attempt of the snapshot that it was made from, also by way of other folds; 0 if there was none. ``incarnation``
    is the shape's; of a later one than the first, ``starts_after`` is where it starts.

    >>> snapshot = ShapeSnapshot(7, MvccSnapshot.parse("100:105:102"), lsn=900, next_xid=108)
    >>> snapshot.contains(800, 101), snapshot.contains(800, 102), snapshot.contains(901, 101)
    (True, False, False)
    >>> snapshot.to_json()
    '{"xmin":100,"xmax":105,"xip":[102],"lsn":900,"next":108,"unseen":[[102,102],[105,107]]}'
    >>> ShapeSnapshot.parse(7, snapshot.to_json()) == snapshot
    True
    """

    attempt: int
    visible: MvccSnapshot
    lsn: int
    next_xid: int
    folded_xid: int | None = None
    incarnation: int = 1
    starts_after: int = -1
    made_from: int | None = None
    contained: ContainedTransactions = field(init=False, repr=False, compare=False)
    """What readers in other programs compare with alone."""

    @classmethod
    def fold(
        cls, attempt: int, horizon: int, folded_xid: int, before: "ShapeSnapshot | None" = None
    ) -> "ShapeSnapshot":
        """A fold of all transactions up to ``horizon``, in place of the snapshot ``before``.

        ``folded_xid`` is the last xid among the transactions, of 32 bits.
        """
        incarnation = (1, -1) if before is None else (before.incarnation, before.starts_after)
        made_from = 0 if before is None else before.attempt if before.made_from is None else before.made_from
        return cls(attempt, _NO_RULE, horizon, _NO_RULE.xmax, folded_xid, *incarnation, made_from)

    @classmethod
    def mark(cls, attempt: int, incarnation: int) -> "ShapeSnapshot":
        """The mark of a later incarnation, of which there is no snapshot yet."""
        return cls(attempt, _NO_RULE, MAX_BIGINT, _NO_RULE.xmax, incarnation=incarnation, starts_after=MAX_BIGINT)

    @property
    def is_fold(self) -> bool:
        return self.folded_xid is not None

    @property
    def is_mark(self) -> bool:
        return self.starts_after == MAX_BIGINT

    @property
    def is_taken(self) -> bool:
        """Whether it is known to have the rows that the table had before the shape: a fold may be of changes alone."""
        return not self.is_fold or bool(self.made_from)

    @property
    def begins_at(self) -> int:
        """The least place of a follower of this snapshot: that of a fold, or below the incarnation's transactions.

        It is at or below ``starts_after``, with offsets above it that no later transaction has (:meth:`is_free`).
        """
        if self.is_fold:
            return self.lsn
        return aligned(self.starts_after) if self.incarnation > 1 else 0

    def is_free(self, tx_offset: int) -> bool:
        """Whether no transaction to come has this offset, of a follower that has all up to the one before it."""
        return tx_offset <= self.starts_after or tx_offset != aligned(tx_offset)

    def may_replace(self, current: "ShapeSnapshot | None") -> bool:
        """Whether a snapshot that has been taken may follow ``current`` in the log, and so contains all of it.

        A snapshot is right by visibility, which only grows, so it contains what one taken before it contains. Of a fold
        it must contain each transaction: none is above its ``lsn``, and all with an xid up to the fold's last had
        ended. Where xids have been reused since, within 2**31 of the last, this refuses what it cannot decide.
        """
        if current is None:
            return True
        if self.incarnation != current.incarnation:
            return self.incarnation > current.incarnation and self.attempt > current.attempt
        if current.folded_xid is None:
            return self.attempt > current.attempt
        is_past = self.lsn >= current.lsn and self.visible.is_after(current.folded_xid)
        return self.attempt > current.attempt and is_past

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if :meth:`contains` cannot distinguish a later transaction from an earlier one."""
        contained = ContainedTransactions.of(self.visible, self.lsn, self.next_xid)
        object.__setattr__(self, "contained", contained)

    @property
    def unseen(self) -> tuple[tuple[int, int], ...]:
        """The xids of transactions that the snapshot lacks although they commit at or below ``lsn``."""
        return self.contained.unseen

    def contains(self, tx_offset: int, xid: int) -> bool:
        """Whether the snapshot's rows have the effects of the shape's transaction at ``tx_offset``.

        Those of earlier incarnations may be so old that their xids have been used again.
        """
        return 0 < tx_offset <= self.starts_after or self.contained.contains(tx_offset, xid)

    def to_json(self) -> str:
        """The ``value`` of the row that ends the snapshot."""
        if self.is_mark:
            # Without what a snapshot has, so that no reader finds no rows.
            return dump_json(_Mark(self.lsn, self.incarnation))
        value = _Value(
            xmin=self.visible.xmin,
            xmax=self.visible.xmax,
            xip=tuple(self.visible.xip),
            lsn=self.lsn,
            next=self.next_xid,
            unseen=self.unseen,
            folded=self.folded_xid,
            made_from=self.made_from if self.is_fold else None,
            incarnation=self.incarnation,
            starts_after=self.starts_after if self.incarnation > 1 else None,
        )
        return dump_json(value)

    @classmethod
    def parse(cls, attempt: int, text: str | None) -> "ShapeSnapshot":
        """Read the ``chunk`` and the ``value`` of the row that ends a snapshot; raises ``DecodeError``."""
        text = text or "null"
        try:
            if '"xmin"' not in text and (mark := _MARKS.read(text)).incarnation > 1:
                return cls.mark(attempt, mark.incarnation)
            return cls._of(attempt, _VALUES.read(text))
        except (DecodeError, ValueError) as error:
            raise DecodeError(f"value of the snapshot {attempt} in a shape's log: {error}") from error

    @classmethod
    def _of(cls, attempt: int, value: _Value) -> "ShapeSnapshot":
        if value.folded is not None and value.made_from is None:
            raise ValueError("made_from is missing")
        if value.incarnation > 1 and value.starts_after is None:
            raise ValueError("starts_after is missing")
        visible = MvccSnapshot(value.xmin, value.xmax, value.xip)
        starts_after = -1 if value.incarnation == 1 or value.starts_after is None else value.starts_after
        found = cls(
            *(attempt, visible, value.lsn, value.next, value.folded, value.incarnation, starts_after),
            made_from=None if value.folded is None else value.made_from,
        )
        if value.unseen != found.unseen:
            raise ValueError(f"unseen is {value.unseen!r:.80}, expected {found.unseen!r:.80} by xip, xmax and next")
        return found


def aligned(tx_offset: int) -> int:
    """The last offset up to this one at which a transaction may commit.

    >>> aligned(1000), aligned(1007), aligned(-1)
    (1000, 1000, -8)
    """
    return tx_offset - tx_offset % _LSN_ALIGNMENT
