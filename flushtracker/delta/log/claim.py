"""``LogClaim``: which writer may append to a shape log, and which of its batches the log has.

All appends to a log carry one app transaction, whose version only rises: ``claim << 32 | batch``. A writer that starts
takes the next even claim; its appends have that plus one, and the number of their batch plus one. Delta refuses an
append that meets another writer's at the same moment. One whose version is not greater than the last is refused here,
and by delta-spark skipped without an error. So if an append's version is the table's last one afterwards, it is this
writer's, and durable. If it is not, another writer has claimed the log.

A writer looks where the logs end only after its claim. So a checkpoint that keeps the claim and what was found knows
all of the log, unless another claim follows, or an append of a batch that it has not committed.
"""

import os
import socket
from collections.abc import Sequence
from typing import Final, TypeAlias

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from flushtracker.delta.log.files import WrittenFile
from flushtracker.delta.log.table import unreadable
from flushtracker.delta.storage import literal, query_rows, storage_reason
from flushtracker.errors import SinkError
from flushtracker.wal.log_offset import LogOffset

APP_ID: Final = "flushtracker: writer of this table"
"""Persisted, so it cannot change; also the key of the writer's name in the commit of a claim."""

_ATTEMPTS: Final = 5
_BATCH_BITS: Final = 32
_BATCHES: Final = (1 << _BATCH_BITS) - 1

LogRows: TypeAlias = Sequence[tuple[str, str, LogOffset]]
"""Rows of a log by source, shape and offset."""


class LogClaim:
    """The claim on the open shape log ``table``. Every storage failure is a ``SinkError``."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table
        self._claim = 0
        self._before = 0

    def take(self, previous: int | None = None, rows: LogRows = ()) -> int:
        """Claim the log for this writer; returns the claim, to be kept in the checkpoint in place of ``previous``.

        Raises:
            SinkError: the table cannot be written, another writer claims it or appends at the same moment, or the log
                is older than the checkpoint: it has not got ``previous``, or one of the ``rows`` that were appended.
        """
        last = self._before = self._last_version()
        if (previous is not None and last >> _BATCH_BITS < previous) or not all(self._reaches(*row) for row in rows):
            raise SinkError(
                f"shape log {self._table.table_uri} is older than the checkpoint, which has written to a later "
                "state of it; restore the newer log. What is missing was confirmed and is not sent again: without it, "
                "define the shapes under new ids, with a new log and a new checkpoint"
            )
        self._claim = (last >> _BATCH_BITS) // 2 * 2 + 2
        properties = CommitProperties(
            {APP_ID: f"process {os.getpid()} on {socket.gethostname()}"},
            app_transactions=[Transaction(APP_ID, self._claim << _BATCH_BITS)],
        )
        try:
            self._table.create_write_transaction([], "append", self._table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise SinkError(
                f"this writer has been fenced: another writer started on shape log {self._table.table_uri}, or wrote "
                "to it, at the same moment; let only one run, and start this one again if it is the one to keep"
            ) from error
        except (DeltaError, OSError) as error:
            raise self._unwritable(error) from error
        return self._claim

    def knows(self, previous: int | None, committed_batch_id: int) -> bool:
        """Whether a checkpoint that made ``previous``, and whose last batch is this, knows all of the log.

        All, that is, when this claim was taken: before, another writer could still append.
        """
        last = self._before
        if previous is None or last >> _BATCH_BITS > previous + 1:
            return False
        return last & _BATCHES <= committed_batch_id + 1

    def version_of(self, batch_id: int) -> int:
        """The version that the append of a batch carries."""
        return self._claim + 1 << _BATCH_BITS | batch_id + 1

    def append(self, files: Sequence[WrittenFile], version: int) -> None:
        """Append files, which are written already, in one commit; they are durable when this returns.

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
            # Upkeep has deleted the log of a removed shape at that moment, or it is committed all the same.
            self.require()
            if self._last_version() == version:
                return
            if not left:
                raise self._unwritable(refused) from refused

    def _try_append(self, files: Sequence[WrittenFile], version: int) -> CommitFailedError | None:
        """Commit once; returns why another commit of the same moment is in the way, if one is."""
        properties = CommitProperties(app_transactions=[Transaction(APP_ID, version)])
        try:
            self._table.create_write_transaction(
                [file.action for file in files], "append", self._table.schema(), commit_properties=properties
            )
        except CommitFailedError as error:
            return error
        except (DeltaError, OSError) as error:
            raise self._unwritable(error) from error
        return None

    def require(self, version: int | None = None) -> None:
        """Raise ``SinkError`` if another writer has claimed the log, or its last append is not ``version``."""
        last = self._last_version()
        if (last >> _BATCH_BITS) - self._claim not in {0, 1} or version not in {None, last}:
            raise SinkError(
                f"this writer has been fenced: another writer{self._other()} writes to shape log "
                f"{self._table.table_uri}; let only one run"
            )

    def _last_version(self) -> int:
        try:
            self._table.update_incremental()
            return self._table.transaction_version(APP_ID) or 0
        except (DeltaError, OSError) as error:
            raise unreadable(self._table.table_uri, error) from error

    def _reaches(self, source: str, shape_id: str, offset: LogOffset) -> bool:
        """Whether the log has the row, or a later one of the shape: a merge may have deleted what a snapshot contains.

        It never deletes the last row of a shape.
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

    def _other(self) -> str:
        """The writer that claimed last, in parentheses, as long as the log still has its name."""
        names = (commit[APP_ID] for commit in self._table.history() if APP_ID in commit)
        name = next(names, None)
        return "" if name is None else f" ({name})"

    def _unwritable(self, error: Exception) -> SinkError:
        return SinkError(f"shape log {self._table.table_uri} cannot be written: {storage_reason(error)}")
