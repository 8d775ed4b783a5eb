"""``ReadPlan``: what executors read of a table in an exported snapshot, and for which shapes, as plain values."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from flushtracker.postgres.range_query import PageRange, page_ranges
from flushtracker.wal.changes import Relation, TableName

PAGES_PER_RANGE: Final = 512
"""Usually 4 MiB, which takes a second or a few to read, so that progress is visible."""

STEP_S: Final = 30.0
"""About how long one step reads: the cost of a lost connection, and how long a waiting ALTER TABLE waits."""

_FIRST_RANGES: Final = 4
_MOST_GROWTH: Final = 8
_RANGE_BITS: Final = 39


@dataclass(frozen=True, slots=True)
class ItemColumns:
    """The columns of a shape's items, in table order; those of its key; and the prefix of its keys."""

    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    key_prefix: str


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition evaluated here as capture evaluates it; it must be bindable to ``relation``."""

    where: str
    relation: Relation


@dataclass(frozen=True, slots=True)
class TableReads:
    """How the rows of one of the plan's tables become items of a shape.

    ``where`` is in the server's SQL. ``filter`` is set instead if the server may raise an error for a row.
    """

    items: ItemColumns
    where: str | None
    filter: RowFilter | None = None


@dataclass(frozen=True, slots=True)
class ShapeReads:
    """How one shape is read; its ``tables`` are in the order of the plan's."""

    shape_id: str
    tables: tuple[TableReads, ...]


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A range of one of the plan's tables, by its index, and the offset of its first row."""

    table: int
    pages: PageRange
    first_op_offset: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Everything to read in the snapshot ``snapshot_id`` for one attempt. The ``options`` may hold a password.

    Each of the ``ranges``, which has its table's index in ``tables``, is read once, for all ``shapes``.
    """

    options: Mapping[str, str] = field(repr=False)
    snapshot_id: str
    attempt: int
    source: str
    tables: tuple[TableName, ...]
    shapes: tuple[ShapeReads, ...]
    ranges: tuple[tuple[int, PageRange], ...]
    statement_timeout_ms: int | None = None

    def range(self, number: int) -> ReadRange:
        """The range with this number. A row of it has the same offset for every shape."""
        table, pages = self.ranges[number]
        return ReadRange(table, pages, number << _RANGE_BITS)

    def without(self, shape_ids: Collection[str]) -> "ReadPlan":
        return replace(self, shapes=tuple(shape for shape in self.shapes if shape.shape_id not in shape_ids))


def plan_ranges(pages: Iterable[int], server_version: int) -> tuple[tuple[int, PageRange], ...]:
    """The ranges of all tables, given the number of pages of each."""
    return tuple(
        (table, each)
        for table, count in enumerate(pages)
        for each in page_ranges(count, PAGES_PER_RANGE, server_version)
    )


def next_step(done: int, ranges: int, seconds: float, connections: int) -> range:
    """The ranges to read next, which should take ``connections`` about :data:`STEP_S`.

    ``seconds`` is how long the first ``done`` ranges took. If there are none, the step is short, to measure the rate.

    >>> next_step(0, 1000, 0.0, 2), next_step(8, 1000, 2.0, 2), next_step(900, 1000, 900.0, 2)
    (range(0, 8), range(8, 72), range(900, 930))
    """
    count = _FIRST_RANGES * connections
    if done:
        wanted = int(STEP_S * done / max(seconds, 0.001))
        count = max(connections, min(wanted, _MOST_GROWTH * done))
    return range(done, min(ranges, done + count))
