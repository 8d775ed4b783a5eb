"""``Commits``: adds all versions of this project's tables, and makes them durable.

Adding a version fails if the version exists: on a disk deltalake links the commit to its name, on an object store it
uses a conditional write. Spark's own log store checks first and then renames, which replaces a commit that another
process has made in between. So Spark commits nothing.

deltalake never syncs. On a local disk, the files that a commit names are synced before the commit. The commit and its
directory entry are synced after it, along with the earlier commits of others. So once a commit has returned, its
version, its rows and all earlier versions survive a power failure. A checkpoint is synced before the commits that it
replaces are deleted. An object store acknowledges a write when it is durable.

On a network file system such as NFS, closing a file sends it to the server, and links are created there.

The response to a commit may be lost: an error after it took effect, or a retry that finds the commit itself and takes
it for another process's. So each commit has a unique id, and after an error the table's log shows whether it is there.

If it is not, a commit to an object store is retried, because the client does not retry a conditional write whose
connection was reset. The retry is based on the version that the commit was made for, so it conflicts with others'
commits as before, and with an earlier attempt that arrives late. Only commits that conflict with themselves are
retried.
"""

import logging
import os
import re
import socket
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from flushtracker.config.storage_path import local_folder
from flushtracker.delta.data_file import now_ms
from flushtracker.delta.storage import commit_notes, read_with_retry, refresh, storage_reason, write_with_retry
from flushtracker.delta.table_features import NOTE, require_writable
from flushtracker.disk_sync import sync, sync_files

logger = logging.getLogger(__name__)

LOG_FOLDER: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"
COMMIT_ID: Final = f"{NOTE}commit"
"""The key of a commit's own id in its notes."""
ACTION_COUNT: Final = f"{NOTE}actions"
"""The key of the number of lines after a commit's notes, which shows whether a commit is complete."""
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""deltalake would delete commits right after writing the checkpoint that replaces them."""

_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..+")
_INTERVAL: Final = "delta.checkpointInterval"
_ATTEMPTS: Final = 20


class Commits:
    """The commits of this process to one table; not thread-safe. Raises ``DeltaError`` or ``OSError``."""

    def __init__(self) -> None:
        self._durable_version: int | None = None

    def commit(
        self,
        table: DeltaTable,
        actions: Sequence[AddAction | RemoveAction],
        transactions: Iterable[Transaction] = (),
        *,
        note: dict[str, str] | None = None,
        retries: int | None = None,
    ) -> None:
        """Add a version with the actions and app transactions; it is durable when this returns.

        ``retries`` is how often it may be rebased on another process's commit; deltalake's default is 15.

        Raises:
            CommitFailedError: it conflicts with another commit.
            DeltaError, OSError: the storage fails, and the commit was not found in the log.
            SinkError: another program has enabled a table feature that is not supported.
        """
        require_writable(table, "table", table.table_uri)
        if folder := local_folder(table.table_uri):
            sync_files(Path(folder), [action.path for action in actions if isinstance(action, AddAction)])
        before, commit_id, transactions = table.version(), uuid.uuid4().hex, list(transactions)
        notes = {**(note or {}), COMMIT_ID: commit_id, ACTION_COUNT: str(len(actions) + len(transactions))}
        properties = CommitProperties(notes, max_commit_retries=retries, app_transactions=transactions)

        def write() -> bool:
            if table.version() != before:
                # Otherwise it would not conflict with others' commits since the first try.
                read_with_retry(table.table_uri, lambda: table.load_as_version(before))
            table.create_write_transaction(
                list(actions),
                "append",
                table.schema(),
                commit_properties=properties,
                post_commithook_properties=_NO_HOOKS,
            )
            return True

        write_with_retry(
            table.table_uri,
            write,
            lambda: _is_committed(table, before, commit_id) or None,
            # Without an app transaction, deltalake would commit again after an earlier attempt that arrives late.
            lambda error: not isinstance(error, CommitFailedError) and (bool(transactions) or retries == 0),
        )
        # deltalake leaves the table at the previous version.
        refresh(table)
        self.sync(table)
        self._checkpoint_if_due(table)

    def claim(self, table: DeltaTable, app_id: str, version: int) -> None:
        """Commit an app transaction without data, with the name of this process."""
        note = {app_id: f"process {os.getpid()} on {socket.gethostname()}"}
        self.commit(table, [], [Transaction(app_id, version)], note=note)

    def replace(
        self,
        table: DeltaTable,
        removed: Sequence[tuple[str, int]],
        added: Sequence[AddAction],
        transactions: Sequence[Transaction] = (),
        *,
        is_deletion: bool = False,
    ) -> bool:
        """Replace files, given by path and size, in one commit; false if another process has replaced one first.

        The versions of ``transactions`` must rise; false, too, if another process has raised one first.

        deltalake does not check whether another commit has removed the same files, which would duplicate their rows. So
        this commits exactly the version after the one in which all ``removed`` were present, and checks again if
        another commit was first.
        """
        versions = [(each.app_id, each.version) for each in transactions]
        for _ in range(_ATTEMPTS):
            refresh(table)
            if any((table.transaction_version(app_id) or 0) >= version for app_id, version in versions):
                return False
            active = set(pa.table(table.get_add_actions())["path"].to_pylist())
            if any(path not in active for path, _ in removed):
                return False
            deleted_ms = now_ms()
            actions = [RemoveAction(path, is_deletion, deleted_ms, size, {}) for path, size in removed]
            try:
                self.commit(table, [*actions, *added], transactions, retries=0)
            except CommitFailedError:
                continue
            return True
        return False

    def sync(self, table: DeltaTable) -> None:
        """Sync what this process has read of the table's log, whoever committed it."""
        version = table.version()
        if (folder := local_folder(table.table_uri)) is None or self._durable_version == version:
            return
        log = Path(folder, LOG_FOLDER)
        first = self._sync_checkpoint(log) if self._durable_version is None else self._durable_version + 1
        for number in range(first, version + 1):
            # Another process may delete commits that a checkpoint has replaced.
            with suppress(FileNotFoundError):
                sync(log / f"{number:020}.json")
        sync(log)
        self._durable_version = version

    @staticmethod
    def _sync_checkpoint(log: Path) -> int:
        """Sync the newest checkpoint, which another process may have left unsynced; returns its version, or 0."""
        names = [path.name for path in log.iterdir()]
        version = max((int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))), default=0)
        for name in names:
            if name == LAST_CHECKPOINT or name.startswith(f"{version:020}.checkpoint."):
                sync(log / name)
        return version

    def _checkpoint_if_due(self, table: DeltaTable) -> None:
        """Write a checkpoint, and delete the expired commits that it replaces; a failure only costs time later."""
        interval = int(table.metadata().configuration.get(_INTERVAL) or 100)
        if (table.version() + 1) % interval:
            return
        try:
            table.create_checkpoint()
            if folder := local_folder(table.table_uri):
                log = Path(folder, LOG_FOLDER)
                self._sync_checkpoint(log)
                sync(log)
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            logger.warning("no checkpoint of a table's log uri=%s reason=%s", table.table_uri, storage_reason(error))


def _is_committed(table: DeltaTable, before: int, commit_id: str) -> bool:
    """Whether one of the versions after ``before`` has the id; raises ``DeltaError`` or ``OSError``."""
    table.update_incremental()
    return any(notes.get(COMMIT_ID) == commit_id for notes in commit_notes(table, before))
