"""``AppVersions``: a cache of an open table's app transactions, updated from version to version.

deltalake reads all commits since the last checkpoint for each lookup: up to a hundred, each a request to an object
store.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from flushtracker.delta.new_commits import NewCommits

_MOST_VERSIONS: Final = 50
"""With more new versions than this, a new lookup is cheaper."""


class AppVersions:
    """The cache of one table. Raises ``DeltaError`` or ``OSError``.

    Without ``commits``, each version of the table needs a new lookup.
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
        """Cache what this process has just committed, if that commit is the table's open version."""
        if self._at is not None and table.version() == self._at + 1:
            self._at += 1
            self._known |= {each.app_id: each.version for each in transactions}

    def _follow(self, version: int) -> None:
        """Apply the commits up to ``version``; drop cached entries if they cannot be read."""
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
                version = transaction["version"]
                # deltalake refuses another one when it opens the table, not when it updates it.
                if type(version) is not int:
                    raise TypeError(f"the version of an app transaction is {version!r}, not an integer")
                self._known[transaction["appId"]] = version
