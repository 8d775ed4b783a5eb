"""``ReadPlan``: what executors read of a table in an exported snapshot, for which shapes, in plain values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from flushtracker.jobs.snapshot.item_texts import ItemColumns
from flushtracker.postgres.range_reader import PageRange, page_ranges
from flushtracker.wal.changes import TableName

PAGES_PER_RANGE: Final = 512
"""Of usually 8 KiB: less than a second of reading, so that the progress can be seen."""

_RANGE_BITS: Final = 39


@dataclass(frozen=True, slots=True)
class TableReads:
    """How the rows of one of the plan's tables become items of a shape; ``where`` is as the server takes it."""

    items: ItemColumns
    where: str | None


@dataclass(frozen=True, slots=True)
class ShapeReads:
    """One shape; ``tables`` are in the order of the plan's."""

    source: str
    shape_id: str
    tables: tuple[TableReads, ...]


@dataclass(frozen=True, slots=True)
class ReadTask:
    """One range of a table for one shape, by their places in the plan, and the first offset of its rows."""

    shape: int
    table: int
    pages: PageRange
    first_op_offset: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """All that is read in the snapshot ``snapshot_id`` for one attempt. The ``options`` may hold a password.

    ``ranges`` are those of each table, by its place in ``tables``. There is a task for each shape and range; those of a
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
        """How many tasks there are."""
        return len(self.shapes) * len(self.ranges)

    def task(self, number: int) -> ReadTask:
        """One of them."""
        shape, place = divmod(number, len(self.ranges))
        table, pages = self.ranges[place]
        return ReadTask(shape, table, pages, place << _RANGE_BITS)


def read_ranges(pages: Iterable[int], server_version: int) -> tuple[tuple[int, PageRange], ...]:
    """The ranges of tables that have so many pages."""
    return tuple(
        (table, each)
        for table, count in enumerate(pages)
        for each in page_ranges(count, PAGES_PER_RANGE, server_version)
    )
