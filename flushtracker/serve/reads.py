"""``LogReads``: reads the tables for clients, in any thread.

Each thread has its own reader. A failed reader is discarded: the next read reopens the tables, so a replaced log or a
temporary storage failure has no lasting effect.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from flushtracker.config.serve_config import SubsetRules
from flushtracker.config.write_config import LogConfig
from flushtracker.errors import ConfigError, FlushtrackerError, PositionError, SinkError
from flushtracker.serve.body import Page, PageFile, stored
from flushtracker.serve.handle import Handle
from flushtracker.serve.joined_transactions import joined_transactions
from flushtracker.serve.log_pages import LogPages
from flushtracker.serve.messages import TransactionMessages, row_messages, transactions
from flushtracker.serve.on_demand.selected_log import in_steps, selected_rows, selected_transactions
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.serve.open_tables import LogAfter, OpenTables
from flushtracker.serve.refusals import RefetchError, RefusalError
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.state_rows import StateRows
from flushtracker.serve.subset.subset_request import Subset
from flushtracker.serve.subset.subset_rows import ReadSubset, SubsetRows, subset_body, subset_mark
from flushtracker.shape_log.position import Position
from flushtracker.wal.log_offset import LogOffset

MOST_TRANSACTION: Final = 64 << 20
"""A transaction with more keys and values is not sent; its client fetches the rows again."""

Check = Callable[[], None]
"""Called between steps of a read; raises if no request waits for it any more."""


class LogReads:
    """Reads for clients, in any thread."""

    def __init__(self, config: LogConfig, source: str | None) -> None:
        self._config = config
        self._source = source
        self._threads = threading.local()

    def open(self) -> OpenTables:
        return OpenTables(self._config, self._source)

    def log_pages(self, seen: SeenShape, position: Position, check: Check, *, is_proven: bool) -> list[Page]:
        """The log after a position, as pages of whole transactions; at least one, which may be empty.

        Unless it ``is_proven``, the log must have the transaction that ends there: see ``SeenShape.proves``.

        Raises:
            RefetchError: the log cannot be continued from there, or not by messages.
            FlushtrackerError: as for any read.
        """
        with self._tables(seen) as tables:
            now, log = _continued(tables, seen, position, is_proven=is_proven)
            reached = max(now.tx, position.tx_offset)
            pages = LogPages(position.tx_offset, check)
            for transaction in _transactions(tables, now, log, position.tx_offset, check):
                if transaction.messages is None:
                    raise RefetchError(transaction.tx_offset)
                if not pages.add(transaction.tx_offset, transaction.messages):
                    return pages.cut()
            return pages.end(reached, now.found.version)

    def unconcerned(
        self, seen: SeenShape, position: Position, selections: Iterable[Selection], check: Check, *, is_proven: bool
    ) -> tuple[int, set[Selection]]:
        """Which selections of one parent show none of its rows that have changed after a position, and up to which
        transaction; raises as :meth:`log_pages`.
        """
        with self._tables(seen) as tables:
            now, log = _continued(tables, seen, position, is_proven=is_proven)
            now.found.require_snapshot()
            judged = [each for each in selections if each.parent.is_still(now.found)]
            return max(now.tx, position.tx_offset), log.changes.show_nothing(judged, check)

    def state(
        self, seen: SeenShape, begun: Handle | None, at: int | None, check: Check, show: Callable[[StateRows], None]
    ) -> StateRows:
        """The rows of a shape after the last transaction, or the rows at ``at`` for a client that has ``begun`` to
        fetch them.

        ``show`` is called whenever another page is complete.

        Raises:
            RefetchError: the rows at ``at`` are no longer known, or are ordered differently from those of ``begun``.
            FlushtrackerError: as for any read.
        """
        with self._tables(seen) as tables:
            offset = None if at is None else LogOffset.last_of(at)
            try:
                now, found = tables.rows(seen.shape_id, seen.found.source, offset)
            except ConfigError as error:
                # Other subclasses are about the shape itself, whatever its rows were.
                if at is None or type(error) is not ConfigError:
                    raise
                raise RefetchError from error
            now = now.selected(seen.selection)
            if begun is not None and not begun.is_generation_of(now.handle):
                raise RefetchError
            # No server gives an offset that is not a transaction's, and whoever makes one up causes no read.
            if at not in {None, now.tx}:
                raise RefetchError
            file = PageFile()
            # Rows of an earlier transaction are not the newest in any version of the table.
            version = found.version if at is None else -1
            state = StateRows(now.handle, now.facts, now.tx, file, version)
            with state.writing():
                whole = tables.reader.row_tables(found, check)
                for rows in whole if now.selection is None else selected_rows(whole, now.selection, check):
                    check()
                    if state.add(row_messages(rows, now.facts.rendering)):
                        show(state)
            return state

    def subset(
        self, seen: SeenShape, subset: Subset, rules: SubsetRules, at: int | None, by: datetime, check: Check
    ) -> ReadSubset:
        """Some rows of a shape: those after the transactions up to ``at`` if these are known, else the newest.

        Without ``at``, a client continues at an offset that the log had ``by`` a time.

        Raises:
            BadRequestError: as :class:`SubsetRows`. FlushtrackerError: as for any read.
        """
        with self._tables(seen) as tables:
            now, found, is_exact = tables.rows_at(seen, at)
            now = now.selected(seen.selection)
            since = tables.since(found, by) if at is None else at
            chosen = SubsetRows.of(subset, now, rules)
            whole = tables.reader.row_tables(found, check)
            rows = chosen.chosen(whole if now.selection is None else selected_rows(whole, now.selection, check), check)
            mark = subset_mark(subset, now.handle, since)
            parts = in_steps([rows], check)
            messages = [each for part in parts for each in row_messages(part, now.facts.rendering, mark)]
            return ReadSubset(now, since, stored(subset_body(messages, since, mark)), is_exact, len(messages))

    @contextmanager
    def _tables(self, seen: SeenShape) -> Iterator[OpenTables]:
        """This thread's tables; the shape log is reopened if it is not the one that ``seen`` is from."""
        tables: OpenTables | None = getattr(self._threads, "tables", None)
        self._threads.tables = None
        if tables is None or tables.table_id != seen.facts.table_id:
            tables = self.open()
        tables.forget([seen.shape_id])
        try:
            yield tables
        except (SinkError, OSError):
            raise
        except (FlushtrackerError, RefetchError, RefusalError):
            self._threads.tables = tables
            raise
        self._threads.tables = tables


def _continued(
    tables: OpenTables, seen: SeenShape, position: Position, *, is_proven: bool
) -> tuple[SeenShape, LogAfter]:
    """The shape, as it is now, and its log after a position; raises ``RefetchError``."""
    try:
        log = tables.log_after(seen, position, is_proven=is_proven)
        now = log.now.selected(seen.selection)
    except PositionError as error:
        raise RefetchError from error
    if now.facts.digest != seen.facts.digest:
        raise RefetchError
    return now, log


def _transactions(
    tables: OpenTables, now: SeenShape, log: LogAfter, after_tx: int, check: Check
) -> Iterator[TransactionMessages]:
    """The content after the transaction ``after_tx``: the log's transactions, or the changes of a query with
    subqueries, or of a selection.
    """
    shape, rendering = log.found.shape, now.facts.rendering
    if now.selection is not None:
        yield from selected_transactions(log.changes, now.selection, after_tx, MOST_TRANSACTION, check)
    elif shape.has_subqueries:
        yield from joined_transactions(tables.reader, shape, after_tx, rendering, MOST_TRANSACTION, check)
    else:
        yield from transactions(tables.reader.log_tables(log.found, check), rendering, MOST_TRANSACTION)
