"""``ReadPlan``: what executors read of a table in an exported snapshot, and for which shapes, as plain values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from flushtracker.postgres.range_reader import PageRange, page_ranges
from flushtracker.wal.changes import TableName

PAGES_PER_RANGE: Final = 512
"""Usually 4 MiB, which is read in less than a second, so that the progress is visible."""

_RANGE_BITS: Final = 39


@dataclass(frozen=True, slots=True)
class ItemColumns:
    """The columns of a shape's items, in the order of the table's; those of its key; and the start of its keys."""

    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    key_prefix: str


@dataclass(frozen=True, slots=True)
class TableReads:
    """How the rows of one of the plan's tables become items of a shape; ``where`` is in the server's SQL."""

    items: ItemColumns
    where: str | None


@dataclass(frozen=True, slots=True)
class ShapeReads:
    """How one shape is read; its ``tables`` are in the order of the plan's."""

    source: str
    shape_id: str
    tables: tuple[TableReads, ...]


@dataclass(frozen=True, slots=True)
class ReadTask:
    """One range of a table for one shape, by their indices in the plan, and the offset of its first row."""

    shape: int
    table: int
    pages: PageRange
    first_op_offset: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """All that is read in the snapshot ``snapshot_id`` for one attempt. The ``options`` may hold a password.

    Each of the ``ranges`` has its table's index in ``tables``. There is a task for each shape and range; the tasks of a
    shape are neighbours.
    """

    options: Mapping[str, str] = field(repr=False)
    snapshot_id: str
    attempt: int
    tables: tuple[TableName, ...]
    shapes: tuple[ShapeReads, ...]
    ranges: tuple[tuple[int, PageRange], ...]
    statement_timeout_ms: int | None = None

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self.shapes) * len(self.ranges)

    def task(self, number: int) -> ReadTask:
        """The task with this number."""
        shape, index = divmod(number, len(self.ranges))
        table, pages = self.ranges[index]
        return ReadTask(shape, table, pages, index << _RANGE_BITS)


def plan_ranges(pages: Iterable[int], server_version: int) -> tuple[tuple[int, PageRange], ...]:
    """The ranges of all tables, given the number of pages of each."""
    return tuple(
        (table, each)
        for table, count in enumerate(pages)
        for each in page_ranges(count, PAGES_PER_RANGE, server_version)
    )
