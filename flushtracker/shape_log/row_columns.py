"""``RowColumns``: rows of one shape's log as columns, so that a writer creates no object per row."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

from flushtracker.shape_log.log_row import LogRow
from flushtracker.wal.log_offset import LogOffset

_COMMIT_TIMESTAMP: Final = LogRow._fields.index("commit_timestamp")
_ITEM_COLUMNS: Final = LogRow._fields.index("xid")
"""The columns before this one are the item's; the others belong to the transaction or the writer."""


@dataclass(slots=True)
class RowColumns:
    """A list per column of :class:`LogRow`, in its order; items have only the columns before ``xid``.

    Iterating yields :class:`LogRow`.
    """

    columns: tuple[list[Any], ...]

    @classmethod
    def empty(cls) -> "RowColumns":
        return cls(tuple([] for _ in LogRow._fields))

    @classmethod
    def no_items(cls) -> "RowColumns":
        return cls(tuple([] for _ in range(_ITEM_COLUMNS)))

    @classmethod
    def of_items(cls, rows: Iterable[tuple[Any, ...]]) -> "RowColumns":
        """These rows as items; columns that items do not use may be missing."""
        found = cls.no_items()
        for row in rows:
            for column, value in zip(found.columns, row, strict=False):
                column.append(value)
        return found

    @classmethod
    def of_rows(cls, rows: Iterable[LogRow]) -> "RowColumns":
        found = cls.empty()
        for row in rows:
            found.append(row)
        return found

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[LogRow]:
        return map(LogRow._make, zip(*self.columns, strict=True))

    def append(self, row: LogRow) -> None:
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)

    def extend(self, other: "RowColumns") -> None:
        """Append the rows of ``other``; both must be rows, or both items."""
        for column, values in zip(self.columns, other.columns, strict=True):
            column.extend(values)

    def extend_by_items(self, items: "RowColumns", xid: int, chunk: int) -> None:
        count = len(items)
        rest = ([xid] * count, [None] * count, [chunk] * count)
        for column, values in zip(self.columns, (*items.columns, *rest), strict=True):
            column.extend(values)

    @property
    def last_offset(self) -> LogOffset:
        """The offset of the last row; there must be one."""
        return LogOffset(self.columns[0][-1], self.columns[1][-1])

    @property
    def last_commit_timestamp(self) -> str | None:
        """The time of the last commit in the rows, ``None`` if there is none."""
        timestamps = self.columns[_COMMIT_TIMESTAMP]
        return next((text for text in reversed(timestamps) if text is not None), None)

    def after(self, offset: LogOffset) -> "RowColumns":
        """The rows at a greater offset."""
        tx_offsets, op_offsets = self.columns[:2]
        if not tx_offsets or min(tx_offsets) > offset.tx_offset:
            return self
        is_past = [each > offset for each in zip(tx_offsets, op_offsets, strict=True)]
        return self if all(is_past) else RowColumns(tuple([*compress(column, is_past)] for column in self.columns))

    def part(self, start: int, end: int | None = None) -> "RowColumns":
        """The rows from index ``start`` up to, but not including, ``end``."""
        return self if start == 0 and end is None else RowColumns(tuple(column[start:end] for column in self.columns))

    @property
    def payload_bytes(self) -> int:
        """The sum of the rows' :attr:`LogRow.payload_bytes`."""
        return sum(sum(map(len, filter(None, column))) for column in self.columns[3:6])

    def payloads(self) -> list[int]:
        """:attr:`LogRow.payload_bytes` of each row."""
        keys, values, old_values = self.columns[3:6]
        return [len(k or "") + len(v or "") + len(o or "") for k, v, o in zip(keys, values, old_values, strict=True)]
