"""The ack table: one row per advance of a source's ack, appended in milliseconds. The table always stays small.

The last ack of a source is not looked up in the rows: each append commits ``Transaction(app_id=source,
version=ack_lsn)``, so the table's log itself holds it. Delta accepts an *older* version, so the versions are compared
before the commit.

Only the driver that started last may append; it fences the others (:mod:`flushtracker.delta.fence`).

Every append adds a small file, which :mod:`flushtracker.delta.compaction` merges, up to about 1 MiB each. A log
checkpoint every 100 commits lets the log's own files expire likewise (:mod:`flushtracker.delta.commits`).
``delta.setTransactionRetentionDuration`` must stay unset: it would expire acks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
from deltalake import Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from flushtracker.delta.owned_table import OwnedTable, TableKind
from flushtracker.errors import SinkError, listed
from flushtracker.tracking.acks.app_transactions import app_id_of, sources
from flushtracker.wal.lsn import format_lsn

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
_KIND: Final = TableKind("ack table", "driver", "storage", SCHEMA, 1 << 20, SEARCHED)


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
        self._owned = OwnedTable(_KIND, uri, storage_options, create=True)
        self._table = self._owned.table
        if _TRANSACTION_RETENTION in self._table.metadata().configuration:
            raise SinkError(f"ack table {uri} has {_TRANSACTION_RETENTION} set, which expires acks; unset it")

    def fence_others(self) -> None:
        """Fence all other drivers, so that only this one can append. Later calls only check that it still can.

        Raises:
            SinkError: the table cannot be written, or another driver fences at the same moment, or has fenced this one
                since the first call.
        """
        if self._owned.fence.is_taken:
            self.require_not_fenced()
        else:
            self._owned.fence_others()

    def require_not_fenced(self) -> None:
        """Raise ``SinkError`` if another driver has fenced this one since :meth:`fence_others`."""
        self._owned.refresh()
        self._owned.fence.require()

    def last_ack(self, source: str) -> int | None:
        self._owned.refresh()
        return self._owned.version_of(app_id_of(source))

    def last_acks(self) -> dict[str, int]:
        """The last ack of every source, from the table's log. This lists the log: use it at the start, not per
        batch.
        """
        self._owned.refresh()
        try:
            found = sources(self._table, self._owned.options)
        except (DeltaError, OSError) as error:
            raise self._owned.error("read", error) from error
        acks = {source: self._owned.version_of(app_id_of(source)) for source in sorted(found)}
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
        transactions = [Transaction(app_id_of(row.source), row.ack_lsn) for row in rows]
        try:
            self._owned.append(self._to_arrow(rows), transactions)
        except CommitFailedError as error:
            refused = listed([f"{format_lsn(row.ack_lsn)} of source {row.source}" for row in rows])
            raise SinkError(
                f"ack table {self.uri} refused ack {refused}: another driver wrote to it at the same moment; let only "
                f"one run"
            ) from error
        return len(rows)

    def _is_greater(self, row: AckRow) -> bool:
        last_ack = self._owned.version_of(app_id_of(row.source))
        return last_ack is None or row.ack_lsn > last_ack

    def _to_arrow(self, rows: Iterable[AckRow]) -> pa.Table:
        """The rows in the table's own schema; columns that this release does not know are null."""
        values = [asdict(row) | {"ack_lsn_text": format_lsn(row.ack_lsn)} for row in rows]
        return pa.Table.from_pylist(values, schema=pa.schema(self._table.schema()))
