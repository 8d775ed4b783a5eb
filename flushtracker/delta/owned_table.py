"""``OwnedTable``: a table of ours to which one process appends, a small file each time."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from flushtracker.delta.app_versions import AppVersions
from flushtracker.delta.commits import Commits
from flushtracker.delta.compaction import Compaction
from flushtracker.delta.data_file import write_file
from flushtracker.delta.fence import Fence
from flushtracker.delta.storage import StoreFiles, read_with_retry, refresh, storage_reason
from flushtracker.delta.table_folder import TableFolder
from flushtracker.delta.table_version import PROPERTY, VERSION, require_known_version, require_ours
from flushtracker.errors import SinkError

CONFIGURATION: Final = {
    PROPERTY: str(VERSION),
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
"""Properties of a new table. It needs no more of its log, which ``Commits`` shortens."""


@dataclass(frozen=True, slots=True)
class TableKind:
    """What messages call a kind of tables and the process that may append, its key in the configuration, its columns.

    Files have statistics of the columns ``searched``, and are merged up to about ``merged_bytes``.
    """

    name: str
    owner: str
    key: str
    schema: pa.Schema
    merged_bytes: int
    searched: Sequence[str] = ()


class OwnedTable:
    """The open table at ``uri``; not thread-safe. Raises ``SinkError`` for storage failures."""

    def __init__(
        self,
        kind: TableKind,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        create: bool,
    ) -> None:
        """Open the table, or with ``create`` create it; raises ``SinkError`` if something else is there."""
        self.uri, self.options = uri, dict(storage_options or {})
        self._kind = kind
        self.commits, self.versions = Commits(), AppVersions()
        folder = TableFolder(kind.name, uri, storage_options)
        try:
            self.table = (
                folder.open_or_create(kind.schema, CONFIGURATION)
                if create
                else read_with_retry(uri, lambda: DeltaTable(uri, storage_options=self.options))
            )
            self._storage = StoreFiles(self.table.table_uri, self.options)
        except TableNotFoundError as error:
            raise SinkError(f"there is no {kind.name} at {uri}; {kind.key} must be that of the jobs") from error
        except (DeltaError, OSError) as error:
            raise self.error("opened or created" if create else "opened", error) from error
        require_ours(self.table, kind.name, uri, kind.schema.names, f"name another {kind.key}")
        self._compaction = Compaction(folder, storage_options, kind.merged_bytes, kind.searched)
        self.fence = Fence(f"{kind.name} {uri}", kind.owner, self.table, self.commits, self.versions)

    def error(self, action: str, error: Exception) -> SinkError:
        return SinkError(f"{self._kind.name} {self.uri} cannot be {action}: {storage_reason(error)}")

    def refresh(self) -> None:
        try:
            refresh(self.table)
        except (DeltaError, OSError) as error:
            raise self.error("read", error) from error
        require_known_version(self.table, self._kind.name, self.uri)

    def version_of(self, app_id: str) -> int | None:
        """The last version of an app transaction; may read the log again, even if the table is open."""
        try:
            return self.versions.get(self.table, app_id)
        except (DeltaError, OSError) as error:
            raise self.error("read", error) from error

    def fence_others(self) -> None:
        """Fence all other owners, so that only this one can append; raises ``SinkError``."""
        self.refresh()
        before = self.table.version()
        self.fence.take()
        self._compaction.run_if_due(self.table, self.commits, before)

    def append(self, rows: pa.Table, transactions: Sequence[Transaction] = ()) -> None:
        """Append rows made from the table's open version in one commit; durable when this returns.

        Raises:
            CommitFailedError: another process has written to the table since.
            SinkError: the table cannot be written, or this process has been fenced.
        """
        before, transactions = self.table.version(), list(transactions)
        if self.fence.is_taken:
            self.fence.require()
            transactions.append(self.fence.transaction)
        try:
            self.commits.commit(self.table, [self.write(rows)], transactions)
        except CommitFailedError:
            raise
        except (DeltaError, OSError) as error:
            raise self.error("written", error) from error
        self.versions.note(self.table, transactions)
        self._compaction.run_if_due(self.table, self.commits, before)

    def write(self, rows: pa.Table) -> AddAction:
        """Write a file, which is not part of the table yet; raises ``DeltaError`` or ``OSError``."""
        return write_file(self._storage, f"part-{uuid.uuid4().hex}.parquet", rows, self._kind.searched)

    def compact(self) -> None:
        """Compact now; a failure is only logged."""
        self._compaction.run(self.table, self.commits)
