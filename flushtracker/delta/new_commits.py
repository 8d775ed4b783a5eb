"""``NewCommits``: the changes of single versions of a table, for its followers; one request per version."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flushtracker.delta.storage import actions_of, brief_files

_KEPT: Final = 8


class NewCommits:
    """The commits of the table at ``table_uri``; the last ones are cached. For one thread at a time."""

    def __init__(self, table_uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.storage = brief_files(table_uri, storage_options)
        """The table's files, by their paths in its folder."""
        self._kept: dict[int, Sequence[Mapping[str, Any]]] = {}

    def actions(self, version: int) -> Sequence[Mapping[str, Any]]:
        """The actions of a version, as Delta's protocol has them.

        Raises:
            OSError: it cannot be read in time, perhaps because a checkpoint has replaced it.
            ValueError: it is malformed.
        """
        if version not in self._kept:
            self._kept[version] = actions_of(self.storage, version)
            if len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]
        return self._kept[version]
