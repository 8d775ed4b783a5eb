"""The query that reads a range of a table for many conditions, which the server evaluates.

With several conditions, the first value of a row is the list of numbers of those that are true, such as ``0 7 12``.
Most rows match few of many conditions, so this is shorter than one column for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from flushtracker.wal.changes import TableName

_TID_RANGES_SINCE: Final = 140_000
_ARGUMENTS: Final = 90
"""The server accepts at most 100 arguments in a call, so long lists are nested."""


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages of a table from ``first`` up to, but not including, ``end``; ``None`` is the table's end."""

    first: int
    end: int | None


def page_ranges(pages: int, pages_each: int, server_version: int) -> list[PageRange]:
    """The ranges in which to read a table of ``pages`` pages; it may have grown since, so the last one has no end.

    A server that cannot scan a range gets a single one, because it would read the whole table for each.

    >>> page_ranges(25, 10, 180000)
    [PageRange(first=0, end=10), PageRange(first=10, end=20), PageRange(first=20, end=None)]
    >>> page_ranges(0, 10, 180000), page_ranges(25, 10, 130000)
    ([PageRange(first=0, end=None)], [PageRange(first=0, end=None)])
    """
    firsts = range(0, max(1, pages), pages_each) if server_version >= _TID_RANGES_SINCE else [0]
    return [PageRange(first, end) for first, end in zip(firsts, [*firsts[1:], None], strict=True)]


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The ``columns`` of rows that satisfy one of the ``conditions``, or of all rows (``has_all``).

    Conditions are SQL that the caller has checked.
    """

    columns: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    has_all: bool = True

    @property
    def is_numbered(self) -> bool:
        """Whether a row begins with the numbers of its conditions; otherwise all rows are selected for the same
        reason.
        """
        return len(self.conditions) > (0 if self.has_all else 1)


def range_query(table: TableName, selection: RowSelection, pages: PageRange) -> sql.Composable:
    """The query for a range of the table itself, without its children."""
    columns = [sql.Identifier(name) for name in selection.columns]
    wanted = [] if selection.has_all or selection.is_numbered else [_parenthesized(selection.conditions[0])]
    # Without a condition on ctid, an index may be used.
    if pages.first > 0:
        wanted.append(sql.SQL(f"ctid >= '({pages.first:d},0)'::tid"))
    if pages.end is not None:
        wanted.append(sql.SQL(f"ctid < '({pages.end:d},0)'::tid"))
    selected = [_matches(selection.conditions), *columns] if selection.is_numbered else columns
    query = sql.SQL("SELECT {} FROM ONLY {}").format(sql.SQL(", ").join(selected), sql.Identifier(*table))
    if wanted:
        query += sql.SQL(" WHERE ") + sql.SQL(" AND ").join(wanted)
    if selection.has_all or not selection.is_numbered:
        return query
    # OFFSET keeps the planner from evaluating all conditions a second time to filter the rows.
    names = sql.SQL(", ").join(map(sql.Identifier, ["matches", *(f"c{n}" for n in range(len(columns)))]))
    return sql.SQL("SELECT * FROM ({} OFFSET 0) AS found ({}) WHERE found.matches <> ''").format(query, names)


def _matches(conditions: Sequence[str]) -> sql.Composable:
    """The numbers of the conditions that are true, as text."""
    parts = [
        sql.SQL("CASE WHEN {} THEN {} END").format(_parenthesized(condition), sql.Literal(number))
        for number, condition in enumerate(conditions)
    ]
    while len(parts) > _ARGUMENTS:
        calls = [_joined(parts[first : first + _ARGUMENTS]) for first in range(0, len(parts), _ARGUMENTS)]
        # An empty list must not add a space.
        parts = [sql.SQL("nullif({}, '')").format(call) for call in calls]
    return _joined(parts)


def _joined(parts: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL("concat_ws(' ', {})").format(sql.SQL(", ").join(parts))


def _parenthesized(condition: str) -> sql.Composable:
    """The line break ends a comment."""
    return sql.SQL("({}\n)").format(sql.SQL(condition))
