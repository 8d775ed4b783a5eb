"""``Fence``: only the process that last took the fence of a table may append to it.

To take it, a process commits the next version of the app id :data:`FENCING_APP_ID`, its fencing token, and each of its
appends commits that version again. A stale process finds a newer version and fails; if both commit at the same moment,
Delta refuses one of them.
"""

from typing import Final

from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from flushtracker.delta.app_versions import AppVersions
from flushtracker.delta.commits import Commits
from flushtracker.delta.storage import committer, storage_reason
from flushtracker.errors import SinkError

FENCING_APP_ID: Final = "flushtracker: owner of this table"
"""The app id of the fencing token, and the key of the owner's name in the commit. Persisted, so it cannot change."""


class Fence:
    """The fence of an open table, at its open version. Raises ``SinkError`` for all failures.

    ``name`` is what messages call the table, and ``owner`` what they call its process.
    """

    def __init__(self, name: str, owner: str, table: DeltaTable, commits: Commits, versions: AppVersions) -> None:
        self._name, self._owner = name, owner
        self._table, self._commits, self._versions = table, commits, versions
        self._token = 0

    @property
    def is_taken(self) -> bool:
        """Whether this process has taken the fence; another may have it by now."""
        return self._token > 0

    @property
    def transaction(self) -> Transaction:
        """The app transaction for each append of the owner."""
        return Transaction(FENCING_APP_ID, self._token)

    def take(self) -> None:
        """Take the fence; raises ``SinkError`` if the table cannot be written, or another process takes it at the same
        moment.
        """
        token = (self._last_token() or 0) + 1
        try:
            self._commits.claim(self._table, FENCING_APP_ID, token)
        except CommitFailedError as error:
            raise SinkError(
                f"this {self._owner} has been fenced: another {self._owner} started on {self._name} at the same "
                "moment; let only one run, and start this one again if it is the one to keep"
            ) from error
        except (DeltaError, OSError) as error:
            raise SinkError(f"{self._name} cannot be written: {storage_reason(error)}") from error
        self._token = token

    def require(self) -> None:
        """Raise ``SinkError`` if this process has not taken the fence, or another one has since."""
        if self._last_token() != self._token:
            raise SinkError(
                f"this {self._owner} has been fenced: another {self._owner}{committer(self._table, FENCING_APP_ID)} "
                f"writes to {self._name}; let only one run"
            )

    def _last_token(self) -> int | None:
        """The last token; may read the log again, even if the table is open."""
        try:
            return self._versions.get(self._table, FENCING_APP_ID)
        except (DeltaError, OSError) as error:
            raise SinkError(f"{self._name} cannot be read: {storage_reason(error)}") from error
