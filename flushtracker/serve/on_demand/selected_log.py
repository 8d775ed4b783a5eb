"""A parent's rows and transactions, as a selection shows them.

A transaction has the difference of what is shown before and after it: a row that comes to match is an insert, one that
no longer does a delete. A TRUNCATE is deletes, too. Both states of a row are those of the parent's fold.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import pyarrow as pa

from flushtracker.serve.joined_transactions import QueryChanges, query_transactions
from flushtracker.serve.messages import TransactionMessages
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.shape_log.fold import columns_of
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shape_log.table.row_versions import FIRST, Version, changed_versions, versions_in
from flushtracker.shape_log.table.version_changes import version_changes
from flushtracker.shapes.where.query_set import END

Check = Callable[[], None]


def selected_rows(rows: Iterable[pa.Table], selection: Selection) -> Iterator[pa.Table]:
    """The rows that are shown, in their order; raises ``DecodeError`` as :meth:`Selection.shown`."""
    for table in rows:
        texts = [selection.shown(text, columns_of(text)) for text in table["value"].to_pylist()]
        found = table.set_column(table.column_names.index("value"), "value", pa.array(texts, table["value"].type))
        yield found.filter(found["value"].is_valid())


def selected_transactions(
    reader: ShapeLogReader, shape: FoundShape, after_tx: int, selection: Selection, most_bytes: int, check: Check
) -> Iterator[TransactionMessages]:
    """The transactions after ``after_tx`` with changes of what is shown; raises as ``query_transactions``."""

    def changes() -> Iterator[pa.Table]:
        tables = changed_versions(reader.finder.table, shape, after_tx, check)
        versions = chain.from_iterable(map(versions_in, tables))
        return version_changes(versions, lambda each: shown_versions(each, selection), shape.key_columns, check)

    found = QueryChanges(changes, selection.rendering, has_old=selection.has_old)
    return query_transactions(reader, shape, after_tx, found, most_bytes, check)


def shown_versions(versions: Iterable[Version], selection: Selection) -> Iterator[tuple[int, str | None]]:
    """What is shown of one row from each transaction on; ``None`` for nothing."""
    end = FIRST
    for _, since, until, text in versions:
        if since > end:
            yield end, None
        yield since, selection.shown(text, columns_of(text))
        end = until
    if end < END:
        yield end, None
