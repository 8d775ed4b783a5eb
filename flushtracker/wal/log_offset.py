"""``LogOffset``: the position of one operation in the stream of committed transactions."""

from typing import Final, NamedTuple

from flushtracker.wal.lsn import format_lsn, parse_lsn

OP_INFINITY: Final = 2**63 - 1
"""An ``op_offset`` past every real one; the largest Spark ``bigint``."""

_INFINITY_TEXT: Final = "inf"


class _Offset(NamedTuple):
    tx_offset: int
    op_offset: int


class LogOffset(_Offset):
    """The commit LSN of a transaction and the index of one operation within it, ordered by both.

    A named tuple, because every change has one and a data class takes three times as long to create and compare. The
    text form is for messages and logs. ``parse`` and ``str`` are inverses for all but :meth:`before_all`.

    >>> LogOffset(23997288, 5) < LogOffset(23997288, 6) < LogOffset(23997300, 0)
    True
    >>> str(LogOffset(23997288, 5))
    '0/16E2B68+5'
    >>> LogOffset.parse("0/16E2B68+5")
    LogOffset(tx_offset=23997288, op_offset=5)

    Raises:
        ValueError: ``tx_offset`` is below -1 or ``op_offset`` is outside 0 to :data:`OP_INFINITY`.
    """

    __slots__ = ()

    def __new__(cls, tx_offset: int, op_offset: int) -> "LogOffset":
        if tx_offset < -1 or not 0 <= op_offset <= OP_INFINITY:
            raise ValueError(
                f"LogOffset ({tx_offset}, {op_offset}) is out of range: tx_offset must be at least -1 and op_offset "
                f"from 0 to {OP_INFINITY}"
            )
        return tuple.__new__(cls, (tx_offset, op_offset))

    @classmethod
    def before_all(cls) -> "LogOffset":
        """Below every other offset."""
        return cls(-1, 0)

    @classmethod
    def first(cls) -> "LogOffset":
        """The lowest offset that a log can contain."""
        return cls(0, 0)

    @classmethod
    def last_before_real_offsets(cls) -> "LogOffset":
        """Above everything stored before replication began, below every replicated operation."""
        return cls(0, OP_INFINITY)

    @classmethod
    def last_of(cls, tx_offset: int) -> "LogOffset":
        """Above every operation of the transaction at ``tx_offset``: ``(tx_offset, ∞)``."""
        return cls(tx_offset, OP_INFINITY)

    @classmethod
    def just_before(cls, tx_offset: int) -> "LogOffset":
        """``(tx_offset − 1, 0)``: above every transaction before the one at ``tx_offset``, below all of that one.

        A commit record is dozens of bytes long, so no transaction commits at ``tx_offset − 1``.
        """
        return cls(tx_offset - 1, 0)

    def reached(self, *, is_commit: bool) -> "LogOffset":
        """The position of a stream after a fragment that ends here.

        A commit fragment ends its transaction, so it reaches ``(tx_offset, ∞)`` however the transaction was cut.
        """
        return LogOffset.last_of(self.tx_offset) if is_commit else self

    @classmethod
    def parse(cls, text: str) -> "LogOffset":
        """Read ``16/B374D848+5``, or ``16/B374D848+inf``; raises ``ValueError`` on anything else."""
        lsn, plus, op = text.partition("+")
        if op == _INFINITY_TEXT:
            return cls(parse_lsn(lsn), OP_INFINITY)
        if not plus or not (op.isascii() and op.isdigit()):
            raise ValueError(f"offset {text!r} is not of the form 16/B374D848+5")
        return cls(parse_lsn(lsn), int(op))

    def __str__(self) -> str:
        if self.tx_offset < 0:
            return "before all"
        op = _INFINITY_TEXT if self.op_offset == OP_INFINITY else str(self.op_offset)
        return f"{format_lsn(self.tx_offset)}+{op}"
