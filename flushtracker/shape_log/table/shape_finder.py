"""``ShapeFinder``: finds a shape in the newest version of a shape log, and what may be read of it.

It needs only the ends of the log (:mod:`flushtracker.shape_log.table.shape_ends`). Only for a place that the shape's
last snapshot does not cover does it read earlier snapshots (:mod:`flushtracker.shape_log.snapshot_history`).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from flushtracker.delta.app_versions import AppVersions
from flushtracker.delta.new_commits import NewCommits
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import literal, query_rows
from flushtracker.errors import ConfigError
from flushtracker.events.registry import Registry
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeSnapshot
from flushtracker.shape_log.snapshot_history import SnapshotHistory
from flushtracker.shape_log.table.chosen_source import chosen_source
from flushtracker.shape_log.table.difference import Difference, taken_at
from flushtracker.shape_log.table.followed_log import FollowedLog
from flushtracker.shape_log.table.found_shape import FoundShape, require_in_log, require_readable
from flushtracker.shape_log.table.log_table import open_shape_log, unreadable
from flushtracker.shape_log.table.shape_ends import ShapeEnd, ShapeEnds
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset

_TX, _OP = LogOffset.last_before_real_offsets()
_SNAPSHOT_END: Final = f"tx_offset = {_TX:d} AND op_offset = {_OP:d} AND operation = {literal(SNAPSHOT)}"
_IS_COMMIT: Final = f"operation = {literal(COMMIT)}"


class ShapeFinder:
    """An open shape log with its registry table, if there is one. For one thread at a time."""

    def __init__(self, log: str, shapes: str | None = None, storage_options: Mapping[str, str] | None = None) -> None:
        self.uri = log
        self.table: DeltaTable = open_shape_log(log, storage_options)
        """Open at the version of the last lookup."""
        commits = NewCommits(self.table.table_uri, storage_options)
        self._ends, self._app_versions = ShapeEnds(self.table, commits), AppVersions(commits)
        default = log.rstrip("/") + "_shapes"
        if shapes is None and RegistryTable.exists(default, storage_options):
            shapes = default
        self._registry = None if shapes is None else RegistryTable(shapes, storage_options)
        self._version_read = -1
        self._current = Registry()

    @property
    def table_id(self) -> str:
        """The id of the log's Delta table; another log in the same folder has another one."""
        return str(self.table.metadata().id)

    @property
    def registry_table(self) -> RegistryTable | None:
        """The registry table as of the last refresh, if there is one."""
        return self._registry

    def refresh(self) -> Registry:
        """Open the newest version of both tables; return the registry, a new object only if it has changed.

        Raises ``SinkError``, or ``DecodeError`` for an entry.
        """
        self._refresh()
        self._current = Registry() if self._registry is None else self._registry.entries()
        return self._current

    def app_version(self, app_id: str) -> int | None:
        """The last version of an app transaction in the open version of the log; raises ``SinkError``."""
        try:
            return self._app_versions.get(self.table, app_id)
        except (DeltaError, OSError) as error:
            raise unreadable(self.uri, error) from error

    def look_up(self, shape_ids: Collection[str], source: str | None = None) -> None:
        """Look up several shapes at once, before calls of :meth:`seen`; raises ``SinkError``, or ``DecodeError`` for a
        snapshot.
        """
        try:
            self._ends.look_up(shape_ids, source)
        except (DeltaError, OSError) as error:
            raise unreadable(self.uri, error) from error

    def seen(self, shape_id: str, source: str | None = None) -> FoundShape:
        """The shape as of the last :meth:`refresh`, even if it cannot be read.

        Raises:
            ConfigError: there is no such shape, or it has several sources.
            ShapeEndedError, SinkError: as for any read.
        """
        return self._found(shape_id, source, None, even_if_ended=False)[0]

    def forget(self, kept: Collection[str]) -> None:
        """Drop cached shapes that are not among ``kept``."""
        self._ends.forget(kept)

    def has_changed(self) -> bool:
        """Whether there may be something new: a table's version differs from the last lookup's, or that was a
        difference, which changes may follow. Raises ``SinkError``.
        """
        self._refresh()
        registry_changed = self._registry is not None and self._registry.has_changed()
        return registry_changed or self.table.version() != self._version_read

    def _refresh(self) -> None:
        try:
            self.table.update_incremental()
        except (DeltaError, OSError) as error:
            raise unreadable(self.uri, error) from error

    def find_log(
        self, shape_id: str, after: Position | None, source: str | None, *, changes_only: bool, even_if_ended: bool
    ) -> FollowedLog:
        """What to read next of a shape's log; raises as :func:`~flushtracker.shape_log.table.reader.read_shape_log`."""
        if after is None:
            shape, _ = self._find(shape_id, source, even_if_ended=even_if_ended)
            shape.require_started()
            if not changes_only:
                shape.require_snapshot()
            return FollowedLog.from_start(shape, changes_only=changes_only)
        if source not in {None, after.source}:
            raise ConfigError(f"source is {source}, but position {after} is of source {after.source}; leave out source")
        shape, before = self._find(shape_id, source, after, even_if_ended=even_if_ended)
        if before.is_empty and (before is not shape or after.tx_offset > 0 or after.attempt > 0):
            raise shape.lost(after)
        if changes_only:
            return self._continued_changes(shape, before, after)
        if before is not shape:
            before.require_reached(after)
            return self._healed(shape, after, before, shape.begins_at)
        return self._continued(shape, after)

    def _continued(self, shape: FoundShape, after: Position) -> FollowedLog:
        """The log after a position of the same source."""
        snapshot = shape.snapshot
        if snapshot is None or (after.attempt == snapshot.attempt and after.tx_offset >= snapshot.begins_at):
            shape.require_reached(after)
            return FollowedLog.from_position(shape, after)
        if shape.may_be_before(after):
            begun = self._history(shape).at_position(after)
            if begun is None or begun.incarnation < snapshot.incarnation:
                return self._healed(shape, after, shape, shape.begins_at)
        shape.require_reached(after)
        shape.require_followed(after)
        if snapshot.is_fold:
            return FollowedLog.from_position(shape, after)
        missed = self._last_missed(shape, after)
        return self._healed(shape, after, shape, after.tx_offset if missed is None else missed)

    def _continued_changes(self, shape: FoundShape, before: FoundShape, after: Position) -> FollowedLog:
        """The log after a position of a follower that reads only the changes, whatever its attempt.

        It gets every change since, even those that a snapshot contains, because it has no snapshot's rows.
        """
        shape.require_started()
        snapshot, after = shape.snapshot, replace(after, attempt=0)
        if before is not shape or (snapshot is not None and after.tx_offset < snapshot.starts_after):
            raise shape.lost_changes(after)
        shape.require_reached(after)
        # No fold is above a snapshot taken after it.
        may_be_folded = snapshot is not None and after.tx_offset < snapshot.lsn
        history = self._history(shape).snapshots if may_be_folded else ()
        if any(each.is_fold and after.tx_offset < each.lsn for each in history):
            raise shape.lost_changes(after)
        return FollowedLog.from_position(replace(shape, snapshot=None), after)

    def _last_missed(self, shape: FoundShape, after: Position) -> int | None:
        """The last transaction after the position that the shape's snapshot contains."""
        missed = shape.missed(after)
        # Folds delete the snapshot's part of these, but not the commit row of the last one.
        return None if missed is None else self._last(f"{shape.condition} AND {_IS_COMMIT} AND {missed}")

    def _healed(self, shape: FoundShape, after: Position, before: FoundShape, upto: int) -> FollowedLog:
        """The difference from the rows of a follower at ``after``, by the log ``before``.

        It leads to the shape's rows after the transactions up to ``upto``, where a later read continues.
        """
        begun = self._history(before).at_position(after)
        if begun is None or not shape.wants_snapshot:
            raise shape.lost(after)
        shape.require_started()
        shape.require_snapshot()
        followed = FollowedLog.with_difference(shape, after, before, begun, upto)
        # The changes after the difference are already in this version.
        self._version_read = -1
        return followed

    def find_rows(
        self, shape_id: str, at: LogOffset | None, source: str | None, *, typed: bool, even_if_ended: bool
    ) -> FoundShape:
        """The shape with its bound, at most ``at``; raises as ``read_shape``."""
        shape, _ = self._find(shape_id, source, even_if_ended=even_if_ended)
        shape.require_started()
        shape.require_snapshot()
        if at is not None:
            shape = self._known_at(shape, at)
        if typed:
            shape.require_types()
        return shape

    def _known_at(self, shape: FoundShape, at: LogOffset) -> FoundShape:
        last_commit = self.last_commit_at(shape, at)
        before = self._known_before(shape, at, last_commit)
        if before is not None:
            return before
        shape.require_inside(at)
        shape.require_state(at, last_commit)
        return replace(shape, last_commit=last_commit)

    def _known_before(self, shape: FoundShape, at: LogOffset, last_commit: int | None) -> FoundShape | None:
        """The shape at an offset that only an earlier snapshot covers, if the log still has that; else ``None``."""
        current = shape.snapshot
        if current is None or at.tx_offset >= current.lsn:
            return None
        if at == shape.bound and at.tx_offset <= current.starts_after:
            # There is no transaction since the incarnation started, so the bound is that start.
            return None
        told = self._history(shape).at_offset(at)
        if told is None:
            return None
        snapshot, next_starts_after = told
        end = shape.last_commit
        if next_starts_after is not None:
            end = self._last(f"{shape.condition} AND {_IS_COMMIT} AND tx_offset <= {next_starts_after:d}")
        if end is None or at > LogOffset.last_of(end):
            return None
        known = replace(shape, last_commit=last_commit, snapshot=snapshot)
        # The registry no longer has the definition of an earlier incarnation.
        return known if snapshot.incarnation == current.incarnation else replace(known, entry=None, table=None)

    def _find(
        self, shape_id: str, source: str | None, after: Position | None = None, *, even_if_ended: bool
    ) -> tuple[FoundShape, FoundShape]:
        """The shape to read, and the shape of the position ``after``, whose source another one may have replaced."""
        self.refresh()
        return self._found(shape_id, source, after, even_if_ended=even_if_ended)

    def _found(
        self, shape_id: str, source: str | None, after: Position | None, *, even_if_ended: bool
    ) -> tuple[FoundShape, FoundShape]:
        """:meth:`_find` without a refresh."""
        registry = self._current
        self._version_read = self.table.version()
        try:
            ends = self._ends.of(shape_id, source, after)
        except (DeltaError, OSError) as error:
            raise unreadable(self.uri, error) from error
        known = ends.keys() | (registry.sources_of(shape_id) if source is None else frozenset[str]())
        if source is not None and registry.shape(source, shape_id) is not None:
            known.add(source)
        source = chosen_source(self.uri, shape_id, source, known, after)
        entry = registry.shape(source, shape_id)
        if entry is not None and entry.removed_at is None:
            require_in_log(entry)
        elif entry is not None:
            require_readable(entry, even_if_ended=even_if_ended, has_log=source in ends)
        table = None if entry is None else registry.table_of(entry)
        tables = () if entry is None else registry.tables_of(entry) or ()
        others = (end.snapshot for name, end in ends.items() if name != source)
        had_snapshot = any(each is not None and each.is_taken for each in others)
        shape = FoundShape(
            self._version_read,
            source,
            shape_id,
            *ends.get(source, ShapeEnd()),
            entry,
            table,
            had_snapshot=had_snapshot,
            inner=tables[1:],
        )
        if after is None or after.source == source:
            return shape, shape
        end = ends.get(after.source, ShapeEnd())
        return shape, FoundShape(self._version_read, after.source, shape_id, *end, None, None)

    def taken_at(self, difference: Difference) -> datetime | None:
        """See :func:`flushtracker.shape_log.table.difference.taken_at`; raises ``SinkError``."""
        try:
            return taken_at(self.table, difference)
        except (DeltaError, OSError) as error:
            raise unreadable(self.uri, error) from error

    def _history(self, shape: FoundShape) -> SnapshotHistory:
        rows = self._query("chunk, value", f"{shape.condition} AND {_SNAPSHOT_END}").to_pylist()
        return SnapshotHistory.of(ShapeSnapshot.parse(row["chunk"], row["value"]) for row in rows)

    def last_commit_at(self, shape: FoundShape, at: LogOffset) -> int | None:
        """The last transaction whose items are all at or before ``at``."""
        tx, op = at
        later = f"tx_offset = {tx:d} AND op_offset > {op:d} AND NOT {_IS_COMMIT} LIMIT 1"
        continues = op < OP_INFINITY and len(self._query("op_offset", f"{shape.condition} AND {later}")) > 0
        upto = f"tx_offset {'<' if continues else '<='} {tx:d}"
        return self._last(f"{shape.condition} AND {_IS_COMMIT} AND {upto}")

    def has_commit(self, shape: FoundShape, tx: int) -> bool:
        """Whether the log has the end of the shape's transaction ``tx``."""
        return self._last(f"{shape.condition} AND {_IS_COMMIT} AND tx_offset = {tx:d}") is not None

    def _last(self, condition: str) -> int | None:
        """The greatest ``tx_offset`` of the rows; ``None`` if there are none."""
        found: int | None = self._query("MAX(tx_offset) AS last", condition)["last"][0].as_py()
        return found

    def _query(self, selected: str, condition: str) -> pa.Table:
        try:
            return query_rows(self.table, f"SELECT {selected} FROM rows WHERE {condition}")  # noqa: S608  literals alone
        except (DeltaError, OSError) as error:
            raise unreadable(self.uri, error) from error
