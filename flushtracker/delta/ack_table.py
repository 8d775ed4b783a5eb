"""The ack table: one row per advance of a source's ack, appended in milliseconds. The table stays small permanently.

The last ack of a source is not looked up in the rows: each append commits ``Transaction(app_id=source,
version=ack_lsn)``, so the table's log itself holds it. Delta accepts an *older* version, so the versions are compared
before the commit.

Only the driver that started last may append; it fences the others. To do so it commits the next version of the app id
``_FENCING_APP_ID``, its fencing token, and each of its appends commits that version again. A stale driver therefore
finds a newer version and stops; if both commit at the same moment, Delta refuses one of them.

Every append adds a file of about 1 kB. After ``COMPACT_EVERY`` appends the small files are merged, up to about 1 MiB
each, and replaced files are deleted once they are past the retention. A log checkpoint every 100 commits lets
the log's own files expire likewise. ``delta.setTransactionRetentionDuration`` must stay unset: it would expire acks.
"""

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from flushtracker.delta.storage import storage_reason, table_rows
from flushtracker.errors import SinkError
from flushtracker.wal.lsn import format_lsn

logger = logging.getLogger(__name__)

COMPACT_EVERY: Final = 500
"""Appends between two compactions; at one ack per second, about eight minutes."""

_COMPACTED_BYTES: Final = 1 << 20
CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
RETENTION_HOURS: Final = 1
_TRANSACTION_RETENTION: Final = "delta.setTransactionRetentionDuration"
_FENCING_APP_ID: Final = "flushtracker: owner of this table"
"""The app id of the fencing token, and the key of the driver's name in the commit. Persisted, so it cannot change."""

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
        """Open the table at ``uri``, or create it; raises ``SinkError`` if it is another kind of table."""
        self.uri = uri
        self._appended = 0
        self._fencing_token = 0
        try:
            self._table = DeltaTable.create(
                uri,
                Schema.from_arrow(SCHEMA),
                mode="ignore",
                configuration=CONFIGURATION,
                storage_options=dict(storage_options or {}),
            )
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {uri} cannot be opened or created: {storage_reason(error)}") from error
        if _TRANSACTION_RETENTION in self._table.metadata().configuration:
            raise SinkError(f"ack table {uri} has {_TRANSACTION_RETENTION} set, which expires acks; unset it")
        have = {field.name for field in self._table.schema().fields}
        if missing := {field.name for field in SCHEMA} - have:
            raise SinkError(
                f"{uri} is a Delta table without the columns {', '.join(sorted(missing))}, so it is not an ack table; "
                f"name another folder in sink.acks"
            )

    def fence_others(self) -> None:
        """Fence all other drivers: from now on only this one can append. Later calls only check that it still can.

        Raises:
            SinkError: the table cannot be written, or another driver fences at the same moment, or has fenced this one
                since the first call.
        """
        if self._fencing_token:
            self.require_not_fenced()
            return
        self._refresh()
        token = (self._table.transaction_version(_FENCING_APP_ID) or 0) + 1
        properties = CommitProperties(
            {_FENCING_APP_ID: f"process {os.getpid()} on {socket.gethostname()}"},
            app_transactions=[Transaction(_FENCING_APP_ID, token)],
        )
        try:
            self._table.create_write_transaction([], "append", self._table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise SinkError(
                f"this driver has been fenced: another driver started on ack table {self.uri} at the same moment; let "
                f"only one run, and start this one again if it is the one to keep"
            ) from error
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {self.uri} cannot be written: {storage_reason(error)}") from error
        self._fencing_token = token

    def require_not_fenced(self) -> None:
        """Raise ``SinkError`` if another driver has fenced this one since :meth:`fence_others`."""
        self._refresh()
        if self._table.transaction_version(_FENCING_APP_ID) != self._fencing_token:
            raise SinkError(
                f"this driver has been fenced: another driver{self._fencing_driver()} writes to ack table {self.uri}; "
                f"let only one run"
            )

    def _fencing_driver(self) -> str:
        """The driver that fenced last, in parentheses, as long as the log still has its name."""
        names = (commit[_FENCING_APP_ID] for commit in self._table.history() if _FENCING_APP_ID in commit)
        name = next(names, None)
        return "" if name is None else f" ({name})"

    def _refresh(self) -> None:
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {self.uri} cannot be read: {storage_reason(error)}") from error

    def last_ack(self, source: str) -> int | None:
        """The current last ack of a source, or ``None``."""
        self._refresh()
        return self._table.transaction_version(source)

    def last_acks(self) -> dict[str, int]:
        """The last ack of every source in the table. Reads one column of every row: for startup, not for each batch."""
        self._refresh()
        try:
            sources = table_rows(self._table, ["DISTINCT source"])["source"].to_pylist()
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {self.uri} cannot be read: {storage_reason(error)}") from error
        acks = {source: self._table.transaction_version(source) for source in sorted(sources)}
        return {source: ack for source, ack in acks.items() if ack is not None}

    def append(self, row: AckRow) -> bool:
        """Append a row if its ack is greater than the source's last one; returns whether it was appended.

        Raises:
            SinkError: the table cannot be written, or this driver has been fenced.
        """
        self.require_not_fenced()
        last_ack = self._table.transaction_version(row.source)
        if last_ack is not None and row.ack_lsn <= last_ack:
            return False
        properties = CommitProperties(
            app_transactions=[
                Transaction(row.source, row.ack_lsn),
                Transaction(_FENCING_APP_ID, self._fencing_token),
            ]
        )
        try:
            write_deltalake(self._table, _to_arrow(row), mode="append", commit_properties=properties)
        except CommitFailedError as error:
            raise SinkError(
                f"ack table {self.uri} refused ack {format_lsn(row.ack_lsn)} of source {row.source}: another driver "
                f"wrote to it at the same moment; let only one run"
            ) from error
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {self.uri} cannot be written: {storage_reason(error)}") from error
        self._appended += 1
        if self._appended % COMPACT_EVERY == 0:
            self.compact()
        return True

    def compact(self) -> None:
        """Merge small files and delete expired ones. A failure only costs time later, so it is just logged."""
        try:
            self._table.optimize.compact(target_size=_COMPACTED_BYTES)
            self._table.vacuum(RETENTION_HOURS, dry_run=False, enforce_retention_duration=False)
        except (DeltaError, OSError) as error:
            logger.warning("ack table not compacted uri=%s reason=%s", self.uri, storage_reason(error))


def _to_arrow(row: AckRow) -> pa.Table:
    values = asdict(row) | {"ack_lsn_text": format_lsn(row.ack_lsn)}
    return pa.Table.from_pylist([values], schema=SCHEMA)
