"""``DeadLetterTable``: the Delta table of malformed flush notifications, to which the job only appends."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from flushtracker.delta.commits import Commits
from flushtracker.delta.compaction import Compaction
from flushtracker.delta.row_files import RowFiles
from flushtracker.delta.storage import storage_reason
from flushtracker.delta.table_features import require_writable
from flushtracker.delta.table_folder import TableFolder, foreign_names, not_empty
from flushtracker.delta.table_version import require_columns
from flushtracker.errors import SinkError

KIND: Final = "dead-letter table"

SCHEMA: Final = pa.schema(
    [
        ("batch_id", pa.int64()),
        ("place", pa.string()),
        ("reason", pa.string()),
        ("value", pa.string()),
        ("written_at", pa.timestamp("us", tz="UTC")),
    ]
)
CONFIGURATION: Final = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
"""Properties of a new table; by default, Delta would keep the log of each batch for a month."""

_COMPACTED_BYTES: Final = 64 << 20


class DeadLetterTable:
    """The table at ``uri``; the first append creates it. Not thread-safe. Raises ``SinkError`` for storage failures."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._uri = uri
        self._options = dict(storage_options or {})
        self._folder = TableFolder(KIND, uri, storage_options)
        self._compaction = Compaction(self._folder, storage_options, _COMPACTED_BYTES)
        self._commits = Commits()
        self._opened: DeltaTable | None = None

    def require_usable(self) -> None:
        """Raise ``SinkError`` if the folder cannot be written, is another table's, or has other files."""
        try:
            # Before the table is opened, because another process may create it meanwhile.
            foreign = foreign_names(self._folder.names())
            table = self._folder.table()
            self._folder.try_write()
        except (DeltaError, OSError) as error:
            raise SinkError(
                f"dead letters: {self._uri} cannot be written: {storage_reason(error)}; name a folder that can "
                "be, and give the options of its storage in storage.options"
            ) from error
        if foreign and table is None:
            raise SinkError(not_empty(KIND, self._uri, foreign))
        if table:
            require_writable(table, KIND, self._uri)
            require_columns(table, KIND, self._uri, SCHEMA.names, "name another storage")

    def append(self, rows: list[dict[str, Any]], query_id: str, batch_id: int) -> None:
        """Append the dead letters of a query's batch, rows of :data:`SCHEMA`, unless it has them; creates the table."""
        table = self._table()
        try:
            table.update_incremental()
            last = table.transaction_version(query_id)
        except (DeltaError, OSError) as error:
            self._opened = None  # The table may have been deleted; the next dead letters then get a new one.
            raise self._error("read", error) from error
        if not rows or (last is not None and last >= batch_id):
            return
        before = table.version()
        written = RowFiles.of(KIND, table, self._options, SCHEMA).write([pa.Table.from_pylist(rows, SCHEMA)])
        try:
            self._commits.commit(table, [file.action for file in written], [Transaction(query_id, batch_id)])
        except (DeltaError, OSError) as error:
            raise self._error("written", error) from error
        self._compaction.run_if_due(table, self._commits, before)

    def _table(self) -> DeltaTable:
        if self._opened is None:
            try:
                self._opened = self._folder.open_or_create(SCHEMA, CONFIGURATION)
            except (DeltaError, OSError) as error:
                raise self._error("opened or created", error) from error
        return self._opened

    def _error(self, action: str, error: Exception) -> SinkError:
        return SinkError(f"{KIND} {self._uri} cannot be {action}: {storage_reason(error)}")
