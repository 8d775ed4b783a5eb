"""The changes of a query's rows, from the versions of the rows that it selects from: by transaction, deletes first."""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

import pyarrow as pa

from flushtracker.shape_log.table.difference_rows import row_changes
from flushtracker.shape_log.table.external_sort import ROWS, sort_tables
from flushtracker.shape_log.table.row_versions import FIRST, Version, columnar

Show: TypeAlias = Callable[[Iterator[Version]], Iterable[tuple[int, str | None]]]
"""What the query shows of one row, given its versions: from each transaction on, its text, or ``None`` for no row."""

_TEXT: Final = pa.large_string()
_CHANGES: Final = pa.schema(
    [("tx_offset", pa.int64()), ("rank", pa.int8())]
    + [(name, _TEXT) for name in ("key", "operation", "value", "old_value")]
)
_Change = tuple[int, int, str, str, str | None, str | None]


def version_changes(
    versions: Iterable[Version], show: Show, key_columns: Collection[str], check: Callable[[], None] | None = None
) -> Iterator[pa.Table]:
    """The changes, as columns ``tx_offset``, ``rank``, ``key``, ``operation``, ``value`` and ``old_value``.

    They are in the order of the first three: within a transaction all deletes come first. An update has the whole row,
    and the old values of the changed columns. The ``versions`` are sorted by key, those of a row by time; all are read
    before the first change is returned.
    """
    changes = _changes(versions, show, key_columns)
    return sort_tables(_in_tables(changes, check), ("tx_offset", "rank", "key"))


def _changes(versions: Iterable[Version], show: Show, key_columns: Collection[str]) -> Iterator[_Change]:
    for key, of_key in groupby(versions, itemgetter(0)):
        was: str | None = None
        for tx, now in show(of_key):
            if tx > FIRST and now != was:
                for change in row_changes(key, was, now, key_columns):
                    yield tx, *change
            was = now


def _in_tables(changes: Iterable[_Change], check: Callable[[], None] | None) -> Iterator[pa.Table]:
    held = list[_Change]()
    for change in changes:
        held.append(change)
        if len(held) == ROWS:
            yield columnar(held, _CHANGES)
            held = []
            if check is not None:
                check()
    yield columnar(held, _CHANGES)
