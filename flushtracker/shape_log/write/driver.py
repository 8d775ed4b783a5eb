"""The driver's side of the writers' micro-batch: rows appended in one commit, and only then the notifications.

The resync of a shape is marked in the log before its first rows are appended.

If anything fails, the batch is not committed. The next driver finds its rows in the log if they were appended
(:mod:`flushtracker.shape_log.table.claim`), and the rerun of the batch notifies them.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, Row

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.row_files import RowFiles
from flushtracker.errors import FlushtrackerError
from flushtracker.events.registry_events import parse_registry_entry
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.write.consumed_changes import ConsumedChanges
from flushtracker.shape_log.write.group_state import BEGUN, ENDED, ENTRY, FILE, LOG_ROWS, SHAPE
from flushtracker.shape_log.write.live_write_status import LiveWriteStatus, WrittenBatch
from flushtracker.shape_log.write.notifier import Notifier
from flushtracker.shape_log.write.packed_rows import unpacked
from flushtracker.spark.batch_driver import BatchDriver
from flushtracker.spark.batch_lsns import as_property
from flushtracker.spark.committed_state import Remedies
from flushtracker.spark.workers import raise_first_error
from flushtracker.wal.log_offset import LogOffset

logger = logging.getLogger(__name__)

REMEDIES: Final = Remedies(
    "change it back, or set write.checkpoint to a new path: the log itself says where to continue",
    "set write.checkpoint to a new path: the log itself says where to continue",
)


class LogTables(NamedTuple):
    """The driver's outputs: rows by ``files``, in commits of ``claim``, marks to ``log``, entries to ``registry``."""

    files: RowFiles
    claim: LogClaim
    log: LogFiles
    registry: RegistryTable


class WriteDriver(BatchDriver):
    """Appends the rows of batches to the log, from ``first_batch_id`` on.

    ``status`` shows what is durable and notified.
    """

    def __init__(self, tables: LogTables, notifier: Notifier, first_batch_id: int, status: LiveWriteStatus) -> None:
        super().__init__(REMEDIES, status)
        self.consumed = ConsumedChanges()
        self._status = status
        self.expected_batch_id = first_batch_id
        self._first_batch_id = first_batch_id
        self._tables = tables
        self._notifier = notifier
        self._gaps: dict[tuple[str, str], str] = {}

    @property
    def done_batch_id(self) -> int:
        """The last batch that is completely in the tables, by this driver or an earlier one; -1 if there is none."""
        return self._first_batch_id - 1 if self.finished_batch_id is None else self.finished_batch_id

    @property
    def gap_sources(self) -> set[str]:
        """The sources with a shape that lacks changes, as far as this driver knows."""
        return {source for source, _ in list(self._gaps)}

    def require_not_fenced(self) -> None:
        """Raise ``SinkError`` if another writer has claimed the log."""
        self._tables.claim.require()

    def process(self, batch: DataFrame, batch_id: int) -> None:
        """Append what the groups return, then notify it; if a group returns an error, do neither."""
        started = time.monotonic()
        if self.consumed.lsns:
            batch.sparkSession.sparkContext.setLocalProperty(*as_property(self.consumed.lsns))
        reports = batch.collect()
        shapes = [row for row in reports if row["kind"] == SHAPE]
        entries = [row["value"] for row in reports if row["kind"] == ENTRY]
        rows = sum(row["rows"] for row in shapes)
        by_executors = [WrittenFile.parse(row["value"]) for row in reports if row["kind"] == FILE]
        try:
            raise_first_error(reports)
            self._announce(reports, entries)
            files = self.written(reports, by_executors, rows) if rows else []
        except FlushtrackerError:
            # Otherwise each restart would add the files of the same batch.
            self._tables.files.discard(by_executors)
            raise
        if files:
            self.append(files, batch_id)
        appended = time.monotonic()
        notified = self.notify(shapes)
        self._forget(row for row in reports if row["kind"] == ENDED)
        self._log_gaps(shapes)
        self._status.note_written(written_batches(shapes))
        self._status.note_gaps(self._gaps)
        if entries:
            # The next append would read them.
            self._status.registry = self._tables.registry.entries()
            self.consumed.note(map(parse_registry_entry, entries))
        logger.log(
            # With `flush: hold` there are batches without events.
            logging.INFO if shapes or entries else logging.DEBUG,
            "batch done batch_id=%d rows=%d shapes=%d notified=%d entries=%d append_ms=%d ms=%d",
            *(batch_id, rows, len(shapes), notified, len(entries)),
            *((appended - started) * 1000, (time.monotonic() - started) * 1000),
        )

    def _announce(self, reports: Iterable[Row], entries: Sequence[str]) -> None:
        """Append what readers must know before the rows: new entries, and marks of new incarnations."""
        if entries:
            self._tables.registry.append(entries, datetime.now(timezone.utc))
        begun = {(row["source"], row["shape_id"]): int(row["value"]) for row in reports if row["kind"] == BEGUN}
        if begun:
            self._tables.log.mark_incarnations(begun, datetime.now(timezone.utc))

    def written(self, reports: Iterable[Row], by_executors: Sequence[WrittenFile], rows: int) -> list[WrittenFile]:
        """The batch's files: those written by executors, and one with the rows that they have left to the driver.

        Raises:
            SinkError: it cannot be written, or the files do not have this number of rows, some of which would be
                notified.
        """
        storage = self._tables.files
        storage.require(by_executors)
        left = unpacked(row["packed"] for row in reports if row["kind"] == LOG_ROWS)
        files = [*by_executors, *storage.write(left)]
        storage.require_rows(files, rows)
        return files

    def append(self, files: Sequence[WrittenFile], batch_id: int) -> None:
        """Append the batch's rows; they are durable when this returns. Raises ``SinkError``."""
        self._tables.claim.append(files, self._tables.claim.version_of(batch_id))

    def notify(self, shapes: Iterable[Row]) -> int:
        """Notify what is durable now; return the number of shapes. Raises ``BrokerError``."""
        durable = [row for row in shapes if row["tx_offset"] >= 0]
        for row in durable:
            self._notifier.flushed(row["source"], row["shape_id"], LogOffset(row["tx_offset"], row["op_offset"]))
        self._notifier.flush()
        return len(durable)

    def _forget(self, ended: Iterable[Row]) -> None:
        for row in ended:
            self._notifier.forget(row["source"], row["shape_id"])
            self._gaps.pop((row["source"], row["shape_id"]), None)

    def _log_gaps(self, shapes: Iterable[Row]) -> None:
        """Log each new gap once, and when it has been closed."""
        for row in shapes:
            key, gap = (row["source"], row["shape_id"]), row["reason"]
            if gap is not None and key not in self._gaps:
                self._gaps[key] = gap
                logger.warning(
                    "gap in shape_changes source=%s shape=%s: %s; nothing past it is written or notified for this "
                    "shape until capture is restarted, which sends it again",
                    *(*key, gap),
                )
            elif gap is None and row["rows"] and self._gaps.pop(key, None) is not None:
                logger.info("gap closed source=%s shape=%s", *key)


def written_batches(shapes: Iterable[Row]) -> dict[str, WrittenBatch]:
    """The results of a batch for each source, from the rows of its shapes."""
    rows, flushed, commits = Counter[str](), dict[str, int](), dict[str, tuple[int, str]]()
    for row in shapes:
        source, lsn, timestamp = row["source"], row["tx_offset"], row["commit_timestamp"]
        rows[source] += row["rows"]
        if lsn >= 0:
            flushed[source] = max(lsn, flushed.get(source, lsn))
        if timestamp is not None:
            commits[source] = max((lsn, timestamp), commits.get(source, (lsn, timestamp)))
    return {
        source: WrittenBatch(count, flushed.get(source), _time_ms(commits[source][1]) if source in commits else None)
        for source, count in rows.items()
    }


def _time_ms(timestamp: str) -> int | None:
    """The time in milliseconds since 1970; ``None`` for a text that capture does not write, but another
    producer may.
    """
    try:
        return int(datetime.fromisoformat(timestamp.removesuffix("Z") + "+00:00").timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
