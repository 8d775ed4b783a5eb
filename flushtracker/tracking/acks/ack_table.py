"""The ack table: one row per advance of a source's ack, appended in milliseconds. The table always stays small.

The last ack of a source is not looked up in the rows: each append commits ``Transaction(app_id=source,
version=ack_lsn)``, so the table's log itself holds it. Delta accepts an *older* version, so the versions are compared
before the commit.

Only the driver that started last may append; it fences the others (:mod:`flushtracker.delta.fence`).

Every append adds a small file. The process that moves the table's version past a multiple of ``COMPACT_EVERY`` merges
the small files, up to about 1 MiB each, and deletes data files that are not part of the table and past the retention. A
log checkpoint every 100 commits lets the log's own files expire likewise (:mod:`flushtracker.delta.commits`).
``delta.setTransactionRetentionDuration`` must stay unset: it would expire acks.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
from deltalake import Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler

from flushtracker.delta.app_versions import AppVersions
from flushtracker.delta.commits import Commits
from flushtracker.delta.compaction import compact
from flushtracker.delta.data_file import write_file
from flushtracker.delta.fence import Fence
from flushtracker.delta.storage import missing_columns, refresh, storage_reason
from flushtracker.delta.table_folder import TableFolder
from flushtracker.delta.table_version import PROPERTY, VERSION, require_readable, require_version
from flushtracker.errors import SinkError, listed
from flushtracker.tracking.acks.app_transactions import app_id_of, sources
from flushtracker.wal.lsn import format_lsn

logger = logging.getLogger(__name__)

COMPACT_EVERY: Final = 100
"""Versions of the table between two compactions; the more files the table has, the slower an append."""

_COMPACTED_BYTES: Final = 1 << 20
CONFIGURATION: Final = {
    PROPERTY: str(VERSION),
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
_TRANSACTION_RETENTION: Final = "delta.setTransactionRetentionDuration"

SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("batch_id", pa.int64()),
        ("ack_lsn", pa.int64()),
        ("ack_lsn_text", pa.string()),
        ("last_seen_lsn", pa.int64()),
        ("pending_shapes", pa.int64()),
        ("blocking_shape", pa.string()),
        ("blocking_since", pa.timestamp("us", tz="UTC")),
        ("acked_at", pa.timestamp("us", tz="UTC")),
    ]
)

SEARCHED: Final = ("source", "ack_lsn")


@dataclass(frozen=True, slots=True)
class AckRow:
    """One advance of a source's ack; ``blocking_shape``, if any, keeps it from reaching ``last_seen_lsn``.

    ``last_seen_lsn`` is the last commit seen, ``None`` before the first.
    """

    source: str
    batch_id: int
    ack_lsn: int
    last_seen_lsn: int | None
    pending_shapes: int
    blocking_shape: str | None
    blocking_since: datetime | None
    acked_at: datetime


class AckTable:
    """An open ack table; not thread-safe. Every storage failure is a ``SinkError``."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        """Open the table at ``uri``, or create it; raises ``SinkError`` if something else is there."""
        self.uri = uri
        self._options = dict(storage_options or {})
        self._commits, self._versions = Commits(), AppVersions()
        self._folder = TableFolder("ack table", "sink.acks", uri, storage_options)
        try:
            self._table = self._folder.open_or_create(SCHEMA, CONFIGURATION)
            self._storage = DeltaStorageHandler(self._table.table_uri, self._options)
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {uri} cannot be opened or created: {storage_reason(error)}") from error
        require_readable(self._table, "ack table", uri)
        if _TRANSACTION_RETENTION in self._table.metadata().configuration:
            raise SinkError(f"ack table {uri} has {_TRANSACTION_RETENTION} set, which expires acks; unset it")
        if missing := missing_columns(self._table, sorted(SCHEMA.names)):
            raise SinkError(
                f"{uri} is a Delta table without the columns {missing}, so it is not an ack table; "
                f"name another folder in sink.acks"
            )
        require_version(self._table, "ack table", uri)
        self._fence = Fence(f"ack table {uri}", "driver", self._table, self._commits, self._versions)

    def fence_others(self) -> None:
        """Fence all other drivers, so that only this one can append. Later calls only check that it still can.

        Raises:
            SinkError: the table cannot be written, or another driver fences at the same moment, or has fenced this one
                since the first call.
        """
        if self._fence.is_taken:
            self.require_not_fenced()
            return
        self._refresh()
        before = self._table.version()
        self._fence.take()
        self._refresh()
        self._compact_if_due(before)

    def require_not_fenced(self) -> None:
        """Raise ``SinkError`` if another driver has fenced this one since :meth:`fence_others`."""
        self._refresh()
        self._fence.require()

    def _refresh(self) -> None:
        try:
            refresh(self._table)
        except (DeltaError, OSError) as error:
            raise self._error("read", error) from error
        require_readable(self._table, "ack table", self.uri)

    def _version_of(self, app_id: str) -> int | None:
        """The last version of an app transaction; may read the log again, even if the table is open."""
        try:
            return self._versions.get(self._table, app_id)
        except (DeltaError, OSError) as error:
            raise self._error("read", error) from error

    def _error(self, action: str, error: Exception) -> SinkError:
        return SinkError(f"ack table {self.uri} cannot be {action}: {storage_reason(error)}")

    def last_ack(self, source: str) -> int | None:
        self._refresh()
        return self._version_of(app_id_of(source))

    def last_acks(self) -> dict[str, int]:
        """The last ack of every source, from the table's log. This lists the log: use it at the start, not per
        batch.
        """
        self._refresh()
        try:
            found = sources(self._table, self._options)
        except (DeltaError, OSError) as error:
            raise self._error("read", error) from error
        acks = {source: self._version_of(app_id_of(source)) for source in sorted(found)}
        return {source: ack for source, ack in acks.items() if ack is not None}

    def append(self, *rows: AckRow) -> int:
        """Append, in one commit, each row whose ack is greater than its source's last one; returns their number.

        A source has at most one row.

        Raises:
            SinkError: the table cannot be written, or this driver has been fenced.
        """
        self.require_not_fenced()
        rows = tuple(row for row in rows if self._is_greater(row))
        if not rows:
            return 0
        before = self._table.version()
        transactions = [Transaction(app_id_of(row.source), row.ack_lsn) for row in rows]
        transactions.append(self._fence.transaction)
        try:
            file = write_file(self._storage, f"part-{uuid.uuid4().hex}.parquet", self._to_arrow(rows), SEARCHED)
            self._commits.commit(self._table, [file], transactions)
            self._versions.note(self._table, transactions)
        except CommitFailedError as error:
            refused = listed([f"{format_lsn(row.ack_lsn)} of source {row.source}" for row in rows])
            raise SinkError(
                f"ack table {self.uri} refused ack {refused}: another driver wrote to it at the same moment; let only "
                f"one run"
            ) from error
        except (DeltaError, OSError) as error:
            raise self._error("written", error) from error
        self._compact_if_due(before)
        return len(rows)

    def _is_greater(self, row: AckRow) -> bool:
        last_ack = self._version_of(app_id_of(row.source))
        return last_ack is None or row.ack_lsn > last_ack

    def _to_arrow(self, rows: Iterable[AckRow]) -> pa.Table:
        """The rows in the table's own schema; columns that this release does not know are null."""
        values = [asdict(row) | {"ack_lsn_text": format_lsn(row.ack_lsn)} for row in rows]
        return pa.Table.from_pylist(values, schema=pa.schema(self._table.schema()))

    def _compact_if_due(self, before: int) -> None:
        """Compact if the version has passed a multiple of ``COMPACT_EVERY`` since ``before``."""
        if self._table.version() // COMPACT_EVERY > before // COMPACT_EVERY:
            self.compact()

    def compact(self) -> None:
        """Merge small files, and delete data files that are not part of the table and older than its own retention.

        They are found by a *full* vacuum: the default one knows only the replaced files that the log still names, and
        log checkpoints drop these after the same retention. A file that another driver has written but not committed
        yet is younger than the retention. A failure only costs time later, so it is just logged.
        """
        try:
            compact(self._table, self._commits, self._options, _COMPACTED_BYTES, SEARCHED)
            self._folder.delete_old_files(self._table)
        except (DeltaError, OSError, pa.ArrowException) as error:
            logger.warning("ack table not compacted uri=%s reason=%s", self.uri, storage_reason(error))
