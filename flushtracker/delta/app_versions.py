"""``AppVersions``: the app transactions of an open table, asked once, and then followed from version to version.

deltalake reads all commits since the last checkpoint for each question: up to a hundred, and on an object store each is
a request.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from flushtracker.delta.new_commits import NewCommits

_MOST_VERSIONS: Final = 50
"""Beyond which a question costs less."""


class AppVersions:
    """What has been asked of one table. Raises ``DeltaError`` or ``OSError``.

    Without ``commits`` a question is asked again for each version of the table.
    """

    def __init__(self, commits: NewCommits | None = None) -> None:
        self._commits = commits
        self._at: int | None = None
        self._known: dict[str, int | None] = {}

    def get(self, table: DeltaTable, app_id: str) -> int | None:
        """The last version of an app transaction in the version at which ``table`` is open, if there is one."""
        if self._at != table.version():
            self._follow(table.version())
        if app_id not in self._known:
            self._known[app_id] = table.transaction_version(app_id)
        return self._known[app_id]

    def note(self, table: DeltaTable, transactions: Iterable[Transaction]) -> None:
        """Know what this process has just committed, if the version at which ``table`` is open now is that commit."""
        if self._at is not None and table.version() == self._at + 1:
            self._at += 1
            self._known |= {each.app_id: each.version for each in transactions}

    def _follow(self, version: int) -> None:
        """Take what the versions up to ``version`` have changed; forget what they do not tell."""
        added = range(0 if self._at is None else self._at + 1, version + 1)
        self._at = version
        if self._commits is None or not 0 < len(added) <= _MOST_VERSIONS:
            self._known.clear()
            return
        try:
            for number in added if self._known else ():
                self._take(self._commits.actions(number))
        except (DeltaError, OSError, ValueError, LookupError, TypeError):
            self._known.clear()

    def _take(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            transaction = action.get("txn")
            if transaction is not None and transaction["appId"] in self._known:
                self._known[transaction["appId"]] = transaction["version"]
