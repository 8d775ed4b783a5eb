"""``LogReads``: reads the tables for the server. No other module here uses the reader of shape logs.

Each thread has its own reader. A failed reader is discarded: the next read reopens the tables, so a replaced log or a
temporary storage failure has no lasting effect.
"""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final

from flushtracker.config.serve_config import SubsetRules
from flushtracker.config.write_config import LogConfig
from flushtracker.errors import ConfigError, FlushtrackerError, PositionError, SinkError
from flushtracker.events.registry import Registry
from flushtracker.serve.body import Page, PageFile, stored
from flushtracker.serve.handle import Handle
from flushtracker.serve.joined_transactions import joined_transactions
from flushtracker.serve.log_pages import LogPages
from flushtracker.serve.messages import TransactionMessages, row_messages, transactions
from flushtracker.serve.on_demand.selected_log import ParentChanges, selected_rows, selected_transactions
from flushtracker.serve.refusals import RefetchError, RefusalError
from flushtracker.serve.seen_shape import SeenShape, ShapeFacts
from flushtracker.serve.state_rows import StateRows
from flushtracker.serve.subset.subset_request import Subset
from flushtracker.serve.subset.subset_rows import ReadSubset, SubsetRows, subset_body, subset_mark
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.table.cut_finder import seen_cut
from flushtracker.shape_log.table.files import LogFile, log_files, require_answer
from flushtracker.shape_log.table.followed_log import FollowedLog
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.log_past import has_changes, last_committed
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.wal.log_offset import LogOffset

_MOST_FACTS: Final = 100
"""The number kept for shapes that are no longer requested."""

_SINCE_FOR: Final = timedelta(seconds=10)
"""How long an offset that the log had is not looked up again."""

MOST_TRANSACTION: Final = 64 << 20
"""A transaction with more keys and values is not sent; its client fetches the rows again."""

Check = Callable[[], None]
"""Called between steps of a read; raises if no request waits for it any more."""


@dataclass(frozen=True, slots=True)
class LogAfter:
    """A shape, and its log after a position; ``changes`` are for what selections show of it."""

    now: SeenShape
    found: FollowedLog
    changes: ParentChanges


class OpenTables:
    def __init__(self, config: LogConfig, source: str | None) -> None:
        self.reader = ShapeLogReader(config.log, config.shapes, config.storage_options)
        self._finder = self.reader.finder
        self.table_id = self._finder.table_id
        self._source, self._options = source, config.storage_options
        self._facts: dict[str, tuple[FoundShape, ShapeFacts]] = {}
        self._since: dict[str, tuple[datetime, int]] = {}
        self._shared: tuple[tuple[str, Position, int], LogAfter] | None = None

    def refresh(self) -> Registry:
        """Open the newest version; the registry is a new object only if it has changed."""
        return self._finder.refresh()

    @property
    def version(self) -> int:
        return self._finder.table.version()

    def files(self) -> list[LogFile]:
        """The files of the open version; reads nothing."""
        return log_files(self._finder.table)

    def ask_for(self, file: LogFile) -> None:
        """See :func:`~flushtracker.shape_log.table.files.require_answer`."""
        require_answer(self._finder.table, self._options, file)

    def look_up(self, shape_ids: Collection[str]) -> None:
        """Find several shapes at once, before each is :meth:`seen`; also raises for an error of a single one."""
        self._finder.look_up(shape_ids, self._source)

    def seen(self, shape_id: str) -> SeenShape:
        """The shape as of the last poll; raises as ``ShapeFinder.seen``."""
        seen = self._with_facts(self._finder.seen(shape_id, self._source))
        is_known = seen.found.entry is not None
        return replace(seen, cut=seen_cut(self._finder, seen.found.source) if is_known else None)

    def log(self, shape_id: str, position: Position) -> tuple[SeenShape, FollowedLog]:
        """The shape in the newest version, and its log after a position."""
        found = self._finder.find_log(shape_id, position, None, changes_only=False, even_if_ended=False)
        return self._with_facts(found.shape), found

    def log_after(self, seen: SeenShape, position: Position, *, is_proven: bool) -> "LogAfter":
        """The shape in the newest version, and its log after a position; definitions of one parent share a read.

        Raises:
            RefetchError: a client cannot continue there. PositionError: as ``ShapeFinder.find_log``.
        """
        key = seen.shape_id, position, seen.found.version
        if seen.selection is not None and self._shared is not None and self._shared[0] == key:
            return self._shared[1]
        now, found = self.log(seen.shape_id, position)
        # A difference is not a transaction of the source, and continues with another attempt.
        if found.difference is not None or not (is_proven or self.has(now, position.tx_offset)):
            raise RefetchError
        log = LogAfter(now, found, ParentChanges(self.reader, found.shape, position.tx_offset))
        self._shared = None if seen.selection is None else (key, log)
        return log

    def has(self, shape: SeenShape, tx: int) -> bool:
        """Whether the log has all that a client of the shape at ``tx`` was shown."""
        return self._finder.has_commit(shape.found, tx) or self.seen(shape.shape_id).proves(tx)

    def rows(self, shape_id: str, source: str | None, at: LogOffset | None) -> tuple[SeenShape, FoundShape]:
        """The shape in the newest version, for reading its rows."""
        chosen = source or self._source
        found = self._finder.find_rows(shape_id, at, chosen, typed=False, even_if_ended=False)
        return self._with_facts(found), found

    def rows_at(self, seen: SeenShape, tx: int | None) -> tuple[SeenShape, FoundShape, bool]:
        """As :meth:`rows`, after the transactions up to ``tx``, and whether it is that: the newest ones otherwise."""
        now, found = self.rows(seen.shape_id, seen.found.source, None)
        if tx is None or tx >= now.tx:
            return now, found, tx is not None
        begins = _known_from(found)
        if tx < begins:
            # Between the two are only transactions that the snapshot has: a client there has them, too.
            if has_changes(self._finder.table, found, tx, begins):
                return now, found, False
            tx = begins
            if tx >= now.tx:
                return now, found, True
        try:
            before, rows = self.rows(seen.shape_id, seen.found.source, LogOffset.last_of(tx))
        except ConfigError as error:
            # Other subclasses are about the shape itself, whatever its rows were.
            if type(error) is not ConfigError:
                raise
            return now, found, False
        return (before, rows, True) if before.facts.digest == now.facts.digest else (now, found, False)

    def since(self, found: FoundShape, by: datetime) -> int:
        """An offset that the shape's log had at a time, or up to ``_SINCE_FOR`` before, and can be continued from."""
        at, tx = self._since.get(found.shape_id, (datetime.min.replace(tzinfo=timezone.utc), 0))
        if not timedelta(0) <= by - at < _SINCE_FOR:
            tx = last_committed(self._finder.uri, self._options, found, by) or 0
            self._since[found.shape_id] = by, tx
        return max(tx, found.begins_at)

    def _with_facts(self, found: FoundShape) -> SeenShape:
        known = self._facts.get(found.shape_id)
        if known is None or not _is_defined_alike(known[0], found):
            known = self._facts[found.shape_id] = found, ShapeFacts.of(found, self.table_id)
        return SeenShape(found, known[1])

    def forget(self, kept: Collection[str]) -> None:
        """Drop cached facts of shapes that are not among ``kept``, if there are many."""
        if len(self._facts) > len(kept) + _MOST_FACTS:
            self._facts = {shape_id: self._facts[shape_id] for shape_id in kept if shape_id in self._facts}
            self._finder.forget(kept)
            self._since.clear()


class LogReads:
    """Reads for clients, in any thread."""

    def __init__(self, config: LogConfig, source: str | None) -> None:
        self._config = config
        self._source = source
        self._threads = threading.local()

    def open(self) -> OpenTables:
        """The tables, newly opened."""
        return OpenTables(self._config, self._source)

    def log_pages(self, seen: SeenShape, position: Position, check: Check, *, is_proven: bool) -> list[Page]:
        """The log after a position, as pages of whole transactions; at least one, which may be empty.

        Unless it ``is_proven``, the log must have the transaction that ends there: see ``SeenShape.proves``.

        Raises:
            RefetchError: the log cannot be continued from there, or not by messages.
            FlushtrackerError: as for any read.
        """
        with self._tables(seen) as tables:
            try:
                log = tables.log_after(seen, position, is_proven=is_proven)
                now = log.now.selected(seen.selection)
            except PositionError as error:
                raise RefetchError from error
            if now.facts.digest != seen.facts.digest:
                raise RefetchError
            reached = max(now.tx, position.tx_offset)
            pages = LogPages(position.tx_offset, check)
            for transaction in _transactions(tables, now, log, position.tx_offset, check):
                if transaction.messages is None:
                    raise RefetchError(transaction.tx_offset)
                if not pages.add(transaction.tx_offset, transaction.messages):
                    return pages.cut()
            return pages.end(reached, now.found.version)

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
                for rows in whole if now.selection is None else selected_rows(whole, now.selection):
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
            rows = chosen.chosen(whole if now.selection is None else selected_rows(whole, now.selection), check)
            mark = subset_mark(subset, now.handle, since)
            messages = row_messages(rows, now.facts.rendering, mark)
            return ReadSubset(now, since, stored(subset_body(messages, since, mark)), is_exact)

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


def _known_from(found: FoundShape) -> int:
    """The transaction from which on the states after each are known, by a snapshot that was taken; 0 for others."""
    if found.snapshot is None or found.snapshot.is_fold:
        return 0
    starts_after = None if found.entry is None else found.entry.starts_after
    return max(found.snapshot.lsn, 0 if starts_after is None else starts_after.tx_offset)


def _is_defined_alike(one: FoundShape, other: FoundShape) -> bool:
    return (one.source, one.entry, one.table) == (other.source, other.entry, other.table)
