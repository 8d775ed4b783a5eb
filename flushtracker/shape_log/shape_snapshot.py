"""``ShapeSnapshot``: a shape's rows at one moment, in its log, and which transactions they contain.

The rows are ``insert`` items before all transactions, at ``(0, n)``, followed by one row :data:`SNAPSHOT` at ``(0,
∞)``; all are appended in one commit. Their ``chunk`` is the attempt. A snapshot taken again has a greater attempt and
replaces the previous one: rows at ``tx_offset`` 0 of other attempts are ignored.

A shape's transactions are appended whether or not its snapshot contains them. Readers skip those that it contains
(:meth:`ShapeSnapshot.contains`), so no one waits for a snapshot, and a slow one is still correct. Whether it contains a
transaction is decided by MVCC visibility, not by LSN: transactions do not become visible in the order of their commits
in the WAL.

Every attempt must contain everything that earlier ones contain, because upkeep deletes what a fold contains.

A **fold** is a snapshot that upkeep makes from the log itself: the rows after every transaction up to ``lsn``, its
*horizon*. It contains all of them, whatever was visible when. A snapshot taken later may lack some: PostgreSQL writes a
commit to the WAL, where it is delivered and folded, before the transaction becomes visible, and a commit that waits for
a synchronous standby stays invisible for any time. The fold deleted their rows from the log, so such a snapshot must
not replace it (:meth:`ShapeSnapshot.may_replace`). A follower of the snapshot that a fold was made from may continue
with the fold; a follower of an earlier one may not, because it never had those rows.

A resynced shape continues in the same log as its next **incarnation**, all of whose transactions commit above
``starts_after``. A snapshot of it contains every transaction up to there, so readers skip the whole previous
incarnation by the same rule. Until there is one, a **mark** separates the two: a ``snapshot`` row without rows or
visibility, which a writer appends before the first changes of the incarnation. While it is the last snapshot, no reader
can read the shape.
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
"""WAL records, and so commits, begin at a multiple of this."""

_NO_RULE: Final = MvccSnapshot(1, 1)
"""A fold's ``visible``, with ``next_xid`` 1. By the readers' rule, it contains everything up to ``lsn``."""

SNAPSHOT: Final = "snapshot"
"""The operation of the row that ends a snapshot."""


ShapeKey = tuple[str, str]
"""Source and shape id."""


class _Mark(Struct):
    lsn: Natural
    incarnation: Incarnation


class _Value(Struct, kw_only=True, omit_defaults=True):
    """The value of a ``snapshot`` row. Only a fold has ``folded``; only a later incarnation has ``starts_after``."""

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

    ``lsn`` is the end of the WAL after ``visible`` was taken: a transaction that commits above it is not in the
    snapshot. ``next_xid`` (64 bits) was read after that, so every transaction that commits at or below ``lsn`` has a
    lower xid. Only a fold has a ``folded_xid``, the last xid that it contains, and ``made_from``, the attempt of the
    snapshot that it was made from, directly or through other folds; 0 if there was none. ``starts_after`` is where the
    shape's ``incarnation`` starts, -1 for the first one.

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
    """The compact rule that readers in other programs get."""

    @classmethod
    def fold(
        cls, attempt: int, horizon: int, folded_xid: int, before: "ShapeSnapshot | None" = None
    ) -> "ShapeSnapshot":
        """A fold of all transactions up to ``horizon``, which replaces the snapshot ``before``.

        ``folded_xid`` is the last xid among the transactions, of 32 bits.
        """
        incarnation = (1, -1) if before is None else (before.incarnation, before.starts_after)
        made_from = 0 if before is None else before.attempt if before.made_from is None else before.made_from
        return cls(attempt, _NO_RULE, horizon, _NO_RULE.xmax, folded_xid, *incarnation, made_from)

    @classmethod
    def mark(cls, attempt: int, incarnation: int) -> "ShapeSnapshot":
        """The mark of a later incarnation that has no snapshot yet."""
        return cls(attempt, _NO_RULE, MAX_BIGINT, _NO_RULE.xmax, incarnation=incarnation, starts_after=MAX_BIGINT)

    @property
    def is_fold(self) -> bool:
        return self.folded_xid is not None

    @property
    def is_mark(self) -> bool:
        return self.starts_after == MAX_BIGINT

    @property
    def is_taken(self) -> bool:
        """Whether it has the rows from before the shape started; a fold may be made from changes alone."""
        return not self.is_fold or bool(self.made_from)

    @property
    def begins_at(self) -> int:
        """The least ``tx_offset`` at which a follower of this snapshot can be: a fold's horizon, or just below the
        incarnation.

        It is at or below ``starts_after``, and no later transaction has an offset right above it (:meth:`is_free`).
        """
        if self.is_fold:
            return self.lsn
        return aligned(self.starts_after) if self.incarnation > 1 else 0

    def is_free(self, tx_offset: int) -> bool:
        """Whether no later transaction can have this offset, so that a follower's place may use it."""
        return tx_offset <= self.starts_after or tx_offset != aligned(tx_offset)

    def may_replace(self, current: "ShapeSnapshot | None") -> bool:
        """Whether this snapshot may follow ``current`` in the log: it must contain everything that ``current``
        contains.

        Visibility only grows, so a snapshot contains what earlier ones contain. If ``current`` is a fold, the snapshot
        must see all of its transactions: its ``lsn`` is not below the fold's, and all xids up to the fold's last one
        had ended. If xids have wrapped since, within 2**31 of the last, undecidable cases are refused.
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

        Transactions of earlier incarnations are contained whatever their xid, which may have been reused.
        """
        return 0 < tx_offset <= self.starts_after or self.contained.contains(tx_offset, xid)

    def to_json(self) -> str:
        """The ``value`` of the ``snapshot`` row."""
        if self.is_mark:
            # A mark lacks a snapshot's keys, so that no reader takes it for an empty snapshot.
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
        """Read the ``chunk`` and the ``value`` of a ``snapshot`` row; raises ``DecodeError``."""
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
            attempt,
            visible,
            value.lsn,
            value.next,
            value.folded,
            value.incarnation,
            starts_after,
            made_from=None if value.folded is None else value.made_from,
        )
        if value.unseen != found.unseen:
            raise ValueError(f"unseen is {value.unseen!r:.80}, expected {found.unseen!r:.80} by xip, xmax and next")
        return found


def aligned(tx_offset: int) -> int:
    """The greatest possible commit LSN at or below ``tx_offset``.

    >>> aligned(1000), aligned(1007), aligned(-1)
    (1000, 1000, -8)
    """
    return tx_offset - tx_offset % _LSN_ALIGNMENT
