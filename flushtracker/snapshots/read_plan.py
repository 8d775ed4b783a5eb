"""``ReadPlan``: what executors read of a table in an exported snapshot, for which shapes, in plain values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from flushtracker.postgres.range_reader import PageRange, page_ranges
from flushtracker.snapshots.item_texts import ItemColumns
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
    """All that is read in the snapshot ``snapshot_id`` for one attempt. The ``options`` may hold a password."""

    options: Mapping[str, str] = field(repr=False)
    snapshot_id: str
    attempt: int
    tables: tuple[TableName, ...]
    shapes: tuple[ShapeReads, ...]
    tasks: tuple[ReadTask, ...]
    statement_timeout_ms: int | None = None


def read_tasks(shapes: int, pages: Iterable[int], server_version: int) -> tuple[ReadTask, ...]:
    """Each range of each table, for each shape; those of a shape are neighbours."""
    ranges = [
        (table, each)
        for table, count in enumerate(pages)
        for each in page_ranges(count, PAGES_PER_RANGE, server_version)
    ]
    return tuple(
        ReadTask(shape, table, each, number << _RANGE_BITS)
        for shape in range(shapes)
        for number, (table, each) in enumerate(ranges)
    )
