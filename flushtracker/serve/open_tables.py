"""``OpenTables``: the tables as they are open in one thread. No other module here uses the reader of shape logs."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final

from flushtracker.config.write_config import LogConfig
from flushtracker.errors import ConfigError
from flushtracker.events.registry import Registry
from flushtracker.serve.on_demand.selected_log import ParentChanges
from flushtracker.serve.refusals import RefetchError
from flushtracker.serve.seen_shape import SeenShape, ShapeFacts
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
        self._since: dict[tuple[str, str], tuple[datetime, int]] = {}
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
        key = found.source, found.shape_id
        at, tx = self._since.get(key, (datetime.min.replace(tzinfo=timezone.utc), 0))
        if not timedelta(0) <= by - at < _SINCE_FOR:
            tx = last_committed(self._finder.uri, self._options, found, by) or 0
            self._since[key] = by, tx
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


def _known_from(found: FoundShape) -> int:
    """The transaction from which on the states after each are known, by a snapshot that was taken; 0 for others."""
    if found.snapshot is None or found.snapshot.is_fold:
        return 0
    starts_after = None if found.entry is None else found.entry.starts_after
    return max(found.snapshot.lsn, 0 if starts_after is None else starts_after.tx_offset)


def _is_defined_alike(one: FoundShape, other: FoundShape) -> bool:
    return (one.source, one.entry, one.table) == (other.source, other.entry, other.table)
