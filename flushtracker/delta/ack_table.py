"""The ack table: one row each time that a source's ack advanced, appended in milliseconds and kept small for good.

The last ack of a source is not looked up in the rows: each append commits ``Transaction(app_id=source,
version=ack_lsn)``, so the table's log itself holds it. Delta does not refuse an *older* version by itself, so that is
compared first.

One driver owns the table: the one that claimed it last. A claim commits the next version of a transaction of its own,
and each append commits the version that its driver claimed with. So a driver that lives on after another has taken over
finds a newer version, or, if both commit at the same moment, is refused by Delta.

Every append adds a file of about 1 kB. After ``COMPACT_EVERY`` of them the small files are merged, up to about 1 MiB
each, and those merged before are deleted once they are past the retention. A log checkpoint every 100 commits lets the
log's own files expire likewise. ``delta.setTransactionRetentionDuration`` must stay unset: it would forget acks.
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
"""Appends between two compactions; at one ack a second, about eight minutes."""

_COMPACTED_BYTES: Final = 1 << 20
CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
RETENTION_HOURS: Final = 1
_TRANSACTION_RETENTION: Final = "delta.setTransactionRetentionDuration"
_OWNER: Final = "flushtracker: owner of this table"
"""The app id whose version counts the claims; a commit's key for the name of the driver that made it."""

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
    """One advance of a source's ack; ``blocking_shape`` holds back what is between it and ``last_seen_lsn``.

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
    """An open ack table; not for use by several threads. Every failure of storage is a ``SinkError``."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        """Open the table at ``uri``, or create it; raises ``SinkError`` where another kind of table is there."""
        self.uri = uri
        self._appended = 0
        self._claim = 0
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
            raise SinkError(f"ack table {uri} has {_TRANSACTION_RETENTION} set, which makes it forget acks; unset it")
        have = {field.name for field in self._table.schema().fields}
        if missing := {field.name for field in SCHEMA} - have:
            raise SinkError(
                f"{uri} is a Delta table without the columns {', '.join(sorted(missing))}, so it is not an ack table; "
                f"name another folder in sink.acks"
            )

    def claim(self) -> None:
        """Make this driver the table's owner, once: from now on the one before can append no more.

        Raises:
            SinkError: the table cannot be written, or another driver claims it at the same moment, or has done so since
                the first call.
        """
        if self._claim:
            self.require_claim()
            return
        self._refresh()
        claim = (self._table.transaction_version(_OWNER) or 0) + 1
        properties = CommitProperties(
            {_OWNER: f"process {os.getpid()} on {socket.gethostname()}"}, app_transactions=[Transaction(_OWNER, claim)]
        )
        try:
            self._table.create_write_transaction([], "append", self._table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise SinkError(
                f"ack table {self.uri} was claimed by another driver at the same moment; let only one run, and start "
                f"this one again if it is that one"
            ) from error
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {self.uri} cannot be written: {storage_reason(error)}") from error
        self._claim = claim

    def require_claim(self) -> None:
        """Raise ``SinkError`` where another driver has claimed the table since :meth:`claim`."""
        self._refresh()
        if self._table.transaction_version(_OWNER) != self._claim:
            raise SinkError(
                f"ack table {self.uri} now belongs to another driver{self._owner_name()}, so this one ends; "
                f"let only one run"
            )

    def _owner_name(self) -> str:
        """Who claimed the table last, while the log still tells."""
        names = (commit[_OWNER] for commit in self._table.history() if _OWNER in commit)
        name = next(names, None)
        return "" if name is None else f", {name}"

    def _refresh(self) -> None:
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {self.uri} cannot be read: {storage_reason(error)}") from error

    def last_ack(self, source: str) -> int | None:
        """The last ack of a source as the table has it at this moment, ``None`` without one."""
        self._refresh()
        return self._table.transaction_version(source)

    def last_acks(self) -> dict[str, int]:
        """The last ack of every source in the table. Reads one column of every row: for a start, not for a batch."""
        self._refresh()
        try:
            sources = table_rows(self._table, ["DISTINCT source"])["source"].to_pylist()
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {self.uri} cannot be read: {storage_reason(error)}") from error
        acks = {source: self._table.transaction_version(source) for source in sorted(sources)}
        return {source: ack for source, ack in acks.items() if ack is not None}

    def append(self, row: AckRow) -> bool:
        """Append a row if its ack is greater than the table's last of its source; returns whether it was.

        Raises:
            SinkError: the table cannot be written, or this driver does not own it.
        """
        self.require_claim()
        last_ack = self._table.transaction_version(row.source)
        if last_ack is not None and row.ack_lsn <= last_ack:
            return False
        properties = CommitProperties(
            app_transactions=[Transaction(row.source, row.ack_lsn), Transaction(_OWNER, self._claim)]
        )
        try:
            write_deltalake(self._table, _to_arrow(row), mode="append", commit_properties=properties)
        except CommitFailedError as error:
            raise SinkError(
                f"ack {format_lsn(row.ack_lsn)} of source {row.source} was refused by ack table {self.uri}: another "
                f"driver wrote there at the same moment; let only one run"
            ) from error
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {self.uri} cannot be written: {storage_reason(error)}") from error
        self._appended += 1
        if self._appended % COMPACT_EVERY == 0:
            self.compact()
        return True

    def compact(self) -> None:
        """Merge small files and delete what has expired. A failure costs only time later, so it is logged."""
        try:
            self._table.optimize.compact(target_size=_COMPACTED_BYTES)
            self._table.vacuum(RETENTION_HOURS, dry_run=False, enforce_retention_duration=False)
        except (DeltaError, OSError) as error:
            logger.warning("ack table not compacted uri=%s reason=%s", self.uri, storage_reason(error))


def _to_arrow(row: AckRow) -> pa.Table:
    values = asdict(row) | {"ack_lsn_text": format_lsn(row.ack_lsn)}
    return pa.Table.from_pylist([values], schema=SCHEMA)
