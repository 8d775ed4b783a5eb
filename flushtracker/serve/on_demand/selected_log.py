"""A parent's rows and transactions, as a selection shows them.

A transaction has the difference of what is shown before and after it: a row that comes to match is an insert, one that
no longer does a delete. A TRUNCATE is deletes, too. Both states of a row are those of the parent's fold. An update has
the key and what has changed, and with ``replica=full`` the whole row.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from time import thread_time
from typing import Final, TypeVar

import pyarrow as pa

from flushtracker.errors import DecodeError
from flushtracker.serve.joined_transactions import QueryChanges, query_transactions, read_xids
from flushtracker.serve.messages import TransactionMessages
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.shape_log.fold import columns_of
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shape_log.table.row_versions import FIRST, Version, changed_versions, versions_in
from flushtracker.shape_log.table.version_changes import version_changes
from flushtracker.shapes.where.query_set import END
from flushtracker.wal.changes import Row

Check = Callable[[], None]
_T = TypeVar("_T")

STEP_ROWS: Final = 500
"""Rows that a read converts at once. Where it judges rows, it stands back for others before each."""
_JUDGE_S: Final = 0.5
"""How long a thread computes to find out whom changes concern: those who wait for it read next."""
_MOST_KEPT: Final = 16 << 20
_VERSION_BYTES: Final = 500
"""About what a version takes besides its text."""


def in_steps(rows: Iterable[pa.Table], check: Check) -> Iterator[pa.Table]:
    """The same rows, a few at a time, with a check before each step."""
    for table in rows:
        for start in range(0, len(table), STEP_ROWS):
            check()
            yield table.slice(start, STEP_ROWS)


def checked(items: Iterable[_T], check: Check) -> Iterator[_T]:
    """The same items, with a check before each: a client's condition may take a second for a row."""
    for each in items:
        check()
        yield each


def selected_rows(rows: Iterable[pa.Table], selection: Selection, check: Check) -> Iterator[pa.Table]:
    """The rows that are shown, in their order; raises ``DecodeError`` as :meth:`Selection.shown`."""
    for table in in_steps(rows, check):
        values = checked(table["value"].to_pylist(), check)
        texts = [selection.shown(text, columns_of(text)) for text in values]
        found = table.set_column(table.column_names.index("value"), "value", pa.array(texts, table["value"].type))
        yield found.filter(found["value"].is_valid())


class ParentChanges:
    """The versions of the parent's rows that have changed after a transaction, read once for all definitions there.

    For one thread. Nothing is kept if that would take more than ``_MOST_KEPT`` bytes of rows.
    """

    def __init__(self, reader: ShapeLogReader, shape: FoundShape, after_tx: int) -> None:
        self._reader, self._after_tx = reader, after_tx
        self.shape = shape
        self._versions: list[Version] | None = None
        self._xids: list[tuple[int, int]] | None = None
        self._rows: dict[str, Row] = {}
        self._texts: dict[str, set[str | None]] = {}

    def versions(self, check: Check) -> Iterator[Version]:
        """The versions, sorted by key, those of a row by time; raises as ``changed_versions``."""
        if self._versions is not None:
            return iter(self._versions)
        tables = changed_versions(self._reader.finder.table, self.shape, self._after_tx, check)
        found, held, size = chain.from_iterable(map(versions_in, tables)), list[Version](), 0
        for each in found:
            held.append(each)
            size += _VERSION_BYTES + len(each[3])
            if size > _MOST_KEPT:
                return chain(held, found)
        self._versions = held
        return iter(held)

    def may_show(self, selection: Selection) -> bool:
        """Whether a row that has changed may be shown, before or after; not known for rows that are not kept."""
        return self._versions is None or all(text in self._texts_of(name) for name, text in selection.required)

    def show_nothing(self, selections: Iterable[Selection], check: Check) -> set[Selection]:
        """The selections that surely show none of the rows that have changed, neither before nor after.

        Once that has taken ``_JUDGE_S``, what is not known yet is not sure.
        """
        self.versions(check)
        end_s = thread_time() + _JUDGE_S
        return {each for each in selections if not (self.may_show(each) and self._shows(each, end_s, check))}

    def _shows(self, selection: Selection, end_s: float, check: Check) -> bool:
        """Whether a row that has changed is shown, or is not known to be hidden by then."""
        if self._versions is None or selection.matches is None:
            return self._versions != []
        for _, _, _, text in checked(self._versions, check):
            if thread_time() >= end_s:
                return True
            try:
                if selection.matches(self.columns(text)) is True:
                    return True
            except DecodeError:
                return True
        return False

    def _texts_of(self, name: str) -> set[str | None]:
        """The texts that a column has in the versions."""
        if name not in self._texts:
            self._texts[name] = {self.columns(text).get(name) for _, _, _, text in self._versions or ()}
        return self._texts[name]

    def xids(self) -> Iterator[tuple[int, int]]:
        """The xid of each transaction, in order."""
        if self._versions is None:
            return read_xids(self._reader, self.shape, self._after_tx)
        if self._xids is None:
            self._xids = list(read_xids(self._reader, self.shape, self._after_tx))
        return iter(self._xids)

    def columns(self, text: str) -> Row:
        """The columns of a version's text."""
        if self._versions is None:
            return columns_of(text)
        if text not in self._rows:
            self._rows[text] = columns_of(text)
        return self._rows[text]


def selected_transactions(
    parent: ParentChanges, selection: Selection, after_tx: int, most_bytes: int, check: Check
) -> Iterator[TransactionMessages]:
    """The transactions after ``after_tx`` that change the shown rows; raises as ``query_transactions``."""

    def changes() -> Iterator[pa.Table]:
        def show(versions: Iterable[Version]) -> Iterator[tuple[int, str | None]]:
            return shown_versions(checked(versions, check), selection, parent.columns)

        versions = parent.versions(check)
        if not parent.may_show(selection):
            return iter(())
        return version_changes(versions, show, parent.shape.key_columns, check)

    full = selection.has_old
    found = QueryChanges(changes, parent.xids, selection.rendering, has_old=full, only_changed=not full)
    return query_transactions(parent.shape, after_tx, found, most_bytes, check)


def shown_versions(
    versions: Iterable[Version], selection: Selection, columns: Callable[[str], Row] = columns_of
) -> Iterator[tuple[int, str | None]]:
    """What is shown of one row from each transaction on; ``None`` for nothing."""
    end = FIRST
    for _, since, until, text in versions:
        if since > end:
            yield end, None
        yield since, selection.shown(text, columns(text))
        end = until
    if end < END:
        yield end, None
