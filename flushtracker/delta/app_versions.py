"""``AppVersions``: the app transactions of an open table, read once for each version of the table.

deltalake reads all commits since the last checkpoint for each question: up to a hundred, and on an object store each is
a request.
"""

from collections.abc import Iterable

from deltalake import DeltaTable, Transaction


class AppVersions:
    """What has been asked of one table. Raises ``DeltaError`` or ``OSError``."""

    def __init__(self) -> None:
        self._at: int | None = None
        self._known: dict[str, int | None] = {}

    def get(self, table: DeltaTable, app_id: str) -> int | None:
        """The last version of an app transaction in the version at which ``table`` is open, if there is one."""
        if self._at != table.version():
            self._at, self._known = table.version(), {}
        if app_id not in self._known:
            self._known[app_id] = table.transaction_version(app_id)
        return self._known[app_id]

    def note(self, table: DeltaTable, transactions: Iterable[Transaction]) -> None:
        """Know what this process has just committed, if the version at which ``table`` is open now is that commit."""
        if self._at is not None and table.version() == self._at + 1:
            self._at += 1
            self._known |= {each.app_id: each.version for each in transactions}
