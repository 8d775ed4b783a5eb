"""``NewCommits``: the changes of single versions of a table, for its followers; one request per version.

deltalake does not expose the actions of a version.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from deltalake import DeltaTable

from flushtracker.delta.storage import BRIEF_RETRIES, brief_files, read_with_retry

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
            text = bytes(self.storage.open_input_file(f"_delta_log/{version:020}.json").read())
            self._kept[version] = [json.loads(line) for line in text.splitlines() if line.strip()]
            if len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]
        return self._kept[version]


def commit_notes(table: DeltaTable, after: int = -1) -> Iterator[Mapping[str, Any]]:
    """The notes of each version after ``after`` up to the open one, the newest first, as far as the log has them.

    deltalake's ``history()`` holds the GIL until the store answers. Raises ``OSError``.
    """
    commits = NewCommits(table.table_uri, table._storage_options)
    for version in range(table.version(), after, -1):
        try:
            actions = read_with_retry(table.table_uri, partial(commits.actions, version), BRIEF_RETRIES)
        except FileNotFoundError:
            return
        except ValueError as error:
            raise OSError(f"version {version} of {table.table_uri} is malformed") from error
        yield next((action["commitInfo"] for action in actions if "commitInfo" in action), {}) | {"version": version}


def committer(table: DeltaTable, app_id: str) -> str:
    """The process that made the last claim, in parentheses; empty if its name has expired from the log, or the store
    does not answer.
    """
    with suppress(OSError):
        return next((f" ({notes[app_id]})" for notes in commit_notes(table) if app_id in notes), "")
    return ""
