"""Upkeep of a shape log while it is written: merges, folds, and deletes logs of removed shapes and old files.

All decisions are based on the table's state. A merge has exactly the rows of the files that it replaces, and its commit
is marked as no data change. A commit that deletes rows is marked as a data change, for its removed and its added files,
as Delta's protocol demands. Neither conflicts with an append; if another process replaces the same files first, this
one does nothing. Replaced files are kept for the table's ``delta.deletedFileRetentionDuration``, so a read of one
version may take that long. For one thread at a time.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import literal, refresh, storage_reason
from flushtracker.errors import SinkError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.shape_snapshot import ShapeKey
from flushtracker.shape_log.table.cut_log import registry_row
from flushtracker.shape_log.table.files import LogFile, LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log, shape_log_folder
from flushtracker.shape_log.table.retention import Retention, RetentionPolicy
from flushtracker.shape_log.table.runs import Merged, Runs
from flushtracker.shape_log.table.snapshots import last_snapshots

logger = logging.getLogger(__name__)

DELETED_APP_ID: Final = "flushtracker: logs of removed shapes deleted"
"""Its version in the table's log is the time, in µs since 1970, up to which removed shapes are deleted. Persisted."""

VACUUM_EVERY: Final = 1000
"""Versions of the table between two vacuums, each of which lists the whole folder."""

_MOST_MERGES: Final = 16
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    merges: int = 0
    rewritten_bytes: int = 0
    deleted_shapes: int = 0
    folded_shapes: int = 0
    dropped_rows: int = 0
    vacuumed_files: int = 0


class _Removed(NamedTuple):
    """When the removal was written to the registry table, in µs since 1970, and the LSN up to which the shape
    was sent.
    """

    written_us: int
    removed_lsn: int
    incarnation: int


class ShapeLogUpkeep:
    """The upkeep of one shape log. A storage failure is a ``SinkError``; ``run`` may be called again."""

    def __init__(
        self,
        log: str,
        shapes: str | None = None,
        *,
        settings: MergeSettings | None = None,
        delete_after: timedelta | None = None,
        retain: RetentionPolicy | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Open the tables.

        A shape's log is deleted once its removal has been in the registry table ``shapes`` for ``delete_after``;
        without ``delete_after``, logs of removed shapes are kept. ``retain`` is how long history is kept, for ever by
        default; it needs the registry table, too.
        """
        self.uri = log
        self._delete_after = delete_after
        self._table = create_shape_log(log, storage_options)
        self._folder = shape_log_folder(log, storage_options)
        self._files = LogFiles(self._table, dict(storage_options or {}))
        self._runs = Runs(self._table, self._files, settings or MergeSettings())
        self._retention = None if retain is None else Retention(self._table, self._files, retain)
        self._registry = None if shapes is None else RegistryTable(shapes, storage_options)
        self._deleted_us = 0
        """The logs of shapes whose removal was written up to this time (µs) are deleted."""
        self._is_vacuum_due = False
        """Set until a vacuum has succeeded, whatever else fails meanwhile."""

    def run(self, now: datetime) -> UpkeepReport:
        """Do what is due at ``now``, in UTC; raises ``SinkError``."""
        try:
            merges, rewritten_bytes = self._merge_all()
            try:
                deleted = self._delete_removed(now)
                folded, dropped = self._fold(now)
                self._fold_registry()
            finally:
                # These read rows, and fail permanently if a file is lost.
                vacuumed = self._vacuum() if self._is_vacuum_due else 0
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise SinkError(f"shape log {self.uri} cannot be kept in order: {storage_reason(error)}") from error
        return UpkeepReport(merges, rewritten_bytes, deleted, folded, dropped, vacuumed)

    def _merge_all(self) -> tuple[int, int]:
        """Merge what is due; return the number of merges and their bytes."""
        done = list[Merged]()
        # Appends may outpace merging, and the rest of the upkeep must run, too.
        while len(done) < _MOST_MERGES and (merge := self._runs.merge()):
            done.append(merge)
            self._is_vacuum_due |= merge.run // VACUUM_EVERY > merge.last_run // VACUUM_EVERY
        return len(done), sum(each.replaced_bytes for each in done)

    def _delete_removed(self, now: datetime) -> int:
        """Delete the logs of shapes whose removal is older than ``delete_after``; return the number of shapes."""
        if self._registry is None or self._delete_after is None:
            return 0
        due_us = (now - self._delete_after - _EPOCH) // _MICROSECOND
        # Before the registry is read: a snapshot of the next incarnation, which must not be deleted, is only taken once
        # the registry has that incarnation.
        files = self._files.current()
        done_us = self._deleted_us = self._table.transaction_version(DELETED_APP_ID) or 0
        removed = {
            key: each for key, each in self._removed(self._registry).items() if done_us < each.written_us <= due_us
        }
        if removed:
            removed = self._not_begun_again(removed)
        if not removed:
            return 0
        shape_ids = {shape_id for _, shape_id in removed}
        replaced, added = list[LogFile](), list[AddAction]()
        for file in files:
            if not file.may_have(shape_ids):
                continue
            kept = self._files.rewrite(file, lambda rows: _without(rows, removed))
            if kept is not None:
                replaced.append(file)
                added += kept
        mark = Transaction(DELETED_APP_ID, max(each.written_us for each in removed.values()))
        if not self._files.replace(replaced, added, is_deletion=True, transaction=mark):
            logger.info("logs of removed shapes not deleted: another process was first uri=%s", self.uri)
            return 0
        return len(removed)

    def _not_begun_again(self, removed: Mapping[ShapeKey, _Removed]) -> dict[ShapeKey, _Removed]:
        """The shapes without a later incarnation in the log; the registry table may not have that yet."""
        shape_ids = ", ".join(sorted({literal(shape_id) for _, shape_id in removed}))
        last = last_snapshots(self._table, f"shape_id IN ({shape_ids})")
        return {
            key: each
            for key, each in removed.items()
            if key not in last.malformed and (key not in last or last[key].incarnation <= each.incarnation)
        }

    def _fold(self, now: datetime) -> tuple[int, int]:
        """Fold what is due; return the number of shapes, and of rows saved."""
        if self._retention is None or self._registry is None:
            return 0, 0
        return self._retention.run(now, self._registry.entries())

    def _fold_registry(self) -> None:
        """Delete replaced rows of the registry table if there are many."""
        if (registry := self._registry) is None:
            return

        def last_seen_us() -> int:
            refresh(self._table)
            return registry_row(self._table.transaction_version, registry.table_id)

        if rows := registry.fold(last_seen_us, self._deleted_us):
            logger.info("registry table folded rows=%d uri=%s", rows, registry.uri)

    @staticmethod
    def _removed(registry: RegistryTable) -> dict[ShapeKey, _Removed]:
        return {
            (source, shape_id): _Removed(written.written_us, removed_at.tx_offset, entry.definition.incarnation)
            for (source, _, shape_id), written in registry.written().items()
            if isinstance(entry := written.entry, ShapeEntry) and (removed_at := entry.removed_at) is not None
        }

    def _vacuum(self) -> int:
        """Delete unreferenced data files past the retention, and old files of the table's log.

        They include files that a killed process wrote but never committed.
        """
        deleted = self._folder.delete_old_files(self._table)
        self._table.cleanup_metadata()
        self._is_vacuum_due = False
        return deleted


def _without(rows: pa.Table, removed: Mapping[ShapeKey, _Removed]) -> pa.Table:
    """The rows of all other shapes, and of transactions of later incarnations."""
    kept, found = rows, set(pc.unique(rows["shape_id"]).to_pylist())
    for (source, shape_id), each in removed.items():
        if shape_id not in found:
            continue
        is_its = pc.and_(pc.equal(kept["shape_id"], shape_id), pc.equal(kept["source"], source))
        is_removed = pc.and_(is_its, pc.less_equal(kept["tx_offset"], each.removed_lsn))
        kept = kept.filter(pc.invert(is_removed))
    return kept
