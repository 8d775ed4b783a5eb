"""``LogClaim``: lets one writer append to a shape log, and knows which of its batches are in the log.

All appends to a log carry one app transaction, whose version only rises: ``claim << 32 | batch``. A starting writer
takes the next even claim; its appends carry that plus one, and their batch number plus one. Delta refuses an append
that conflicts with another writer's, and this class one whose version is not greater than the last. So if an append's
version is the table's last one afterwards, it is this writer's, and durable. Otherwise another writer has claimed the
log.

A writer reads the ends of the logs only after its claim. So a checkpoint with the claim and these ends is up to date,
unless another claim follows, or an append of a batch that the checkpoint has not committed.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from flushtracker.delta.app_versions import AppVersions
from flushtracker.delta.commits import Commits
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.storage import committer, literal, query_rows, refresh
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.log_table import unreadable, unwritable
from flushtracker.wal.log_offset import LogOffset

APP_ID: Final = "flushtracker: writer of this table"
"""The app id of a claim, and the key of the writer's name in its commit. Persisted, so it cannot change."""

_ATTEMPTS: Final = 5
_BATCH_BITS: Final = 32
_BATCHES: Final = (1 << _BATCH_BITS) - 1

LogRows: TypeAlias = Sequence[tuple[str, str, LogOffset]]
"""Rows of a log by source, shape and offset."""


class LogClaim:
    """The claim on the open shape log ``table``. Raises ``SinkError`` for storage failures."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table
        self._commits, self._versions = Commits(), AppVersions()
        self._claim = 0
        self._before = 0

    def take(self, previous: int | None = None, rows: LogRows = ()) -> int:
        """Claim the log for this writer; return the claim, which replaces ``previous`` in the checkpoint.

        Raises:
            SinkError: the table cannot be written, another writer claims it or appends at the same moment, or the log
                is older than the checkpoint: it lacks ``previous``, or one of the ``rows`` that were appended.
        """
        last = self._before = self._last_version()
        if (previous is not None and last >> _BATCH_BITS < previous) or not all(self._reaches(*row) for row in rows):
            raise SinkError(
                f"shape log {self._table.table_uri} is older than the checkpoint, which has written to a later "
                "state of it; restore the newer log. The missing changes were confirmed and are not resent: without it "
                "begin all shapes again (flushtracker resync), with a new log and a new checkpoint"
            )
        self._claim = (last >> _BATCH_BITS) // 2 * 2 + 2
        try:
            self._commits.claim(self._table, APP_ID, self._claim << _BATCH_BITS)
        except CommitFailedError as error:
            raise SinkError(
                f"this writer has been fenced: another writer started on shape log {self._table.table_uri}, or wrote "
                "to it, at the same moment; let only one run, and start this one again if it is the one to keep"
            ) from error
        except (DeltaError, OSError) as error:
            raise unwritable(self._table.table_uri, error) from error
        return self._claim

    def covers(self, previous: int | None, committed_batch_id: int) -> bool:
        """Whether a checkpoint with the claim ``previous`` and this last batch is up to date with the log.

        It is compared with the log when this claim was taken: until then, another writer could append.
        """
        last = self._before
        if previous is None or last >> _BATCH_BITS > previous + 1:
            return False
        return last & _BATCHES <= committed_batch_id + 1

    def version_of(self, batch_id: int) -> int:
        return self._claim + 1 << _BATCH_BITS | batch_id + 1

    def append(self, files: Sequence[WrittenFile], version: int) -> None:
        """Append written files in one commit; they are durable when this returns.

        Raises:
            SinkError: the table cannot be written, or another writer has claimed the log.
        """
        self.require()
        if self._last_version() >= version:
            raise SinkError(f"shape log {self._table.table_uri} has an append of version {version} already")
        for left in reversed(range(_ATTEMPTS)):
            refused = self._try_append(files, version)
            if refused is None:
                self.require(version)
                return
            # Either upkeep deleted the log of a removed shape at that moment, or the append was committed after all.
            self.require()
            if self._last_version() == version:
                self._sync()
                return
            if not left:
                raise unwritable(self._table.table_uri, refused) from refused

    def _try_append(self, files: Sequence[WrittenFile], version: int) -> CommitFailedError | None:
        """Commit once; return the error if the commit conflicts with another one."""
        try:
            self._commits.commit(self._table, [file.action for file in files], [Transaction(APP_ID, version)])
        except CommitFailedError as error:
            return error
        except (DeltaError, OSError) as error:
            raise unwritable(self._table.table_uri, error) from error
        return None

    def require(self, version: int | None = None) -> None:
        """Raise ``SinkError`` if another writer has claimed the log, or its last append is not ``version``."""
        last = self._last_version()
        if (last >> _BATCH_BITS) - self._claim not in {0, 1} or version not in {None, last}:
            raise SinkError(
                f"this writer has been fenced: another writer{committer(self._table, APP_ID)} writes to shape log "
                f"{self._table.table_uri}; let only one run"
            )

    def _sync(self) -> None:
        try:
            self._commits.sync(self._table)
        except OSError as error:
            raise unwritable(self._table.table_uri, error) from error

    def _last_version(self) -> int:
        try:
            refresh(self._table)
            return self._versions.get(self._table, APP_ID) or 0
        except (DeltaError, OSError) as error:
            raise unreadable(self._table.table_uri, error) from error

    def _reaches(self, source: str, shape_id: str, offset: LogOffset) -> bool:
        """Whether the log has the row, or a later one of the shape.

        Upkeep may have deleted a row that a snapshot contains, but never the last row of a shape.
        """
        tx, op = offset
        query = (
            f"SELECT chunk FROM rows WHERE source = {literal(source)} AND shape_id = {literal(shape_id)} "  # noqa: S608
            f"AND tx_offset >= {tx:d} AND (tx_offset > {tx:d} OR op_offset >= {op:d}) LIMIT 1"
        )
        try:
            return bool(query_rows(self._table, query).num_rows)
        except (DeltaError, OSError) as error:
            raise unreadable(self._table.table_uri, error) from error
