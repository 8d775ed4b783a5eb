"""The *cut* of a source: an LSN up to which the log is complete for all of its shapes. It is stored in the log itself.

It is the version of an app transaction, which only rises. It holds for each shape that is live in the registry table.
The table must be read after the log, and must be the one that the cut was computed from, with at least the same rows.
So the log also has the id of that table, and the time of its last row. :mod:`flushtracker.shape_log.write.cuts` defines
what is written in which order, and :mod:`flushtracker.shape_log.table.cut_finder` how it is read.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from deltalake import Transaction
from deltalake.exceptions import DeltaError

from flushtracker.delta.app_versions import AppVersions
from flushtracker.delta.commits import Commits
from flushtracker.delta.new_commits import NewCommits
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import refresh
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.log_table import open_shape_log, unwritable

# The app ids are persisted, so neither can change.
CUT_APP_ID: Final = "flushtracker: complete up to here, by registry table {registry}, source {source}"
REGISTRY_APP_ID: Final = "flushtracker: cuts by the row of this time of registry table {registry}"


Versions: TypeAlias = Callable[[str], int | None]
"""Looks up the last version of an app transaction in the open version of the log; callers below raise its errors."""


def last_cut(versions: Versions, registry: str, source: str) -> int | None:
    """The source's cut for a registry table, in the open version of the log."""
    return versions(CUT_APP_ID.format(registry=registry, source=source))


def registry_row(versions: Versions, registry: str) -> int:
    """The time of the row that the registry table must have for the cuts of the open version to hold; 0 without cuts.

    In microseconds since 1970.
    """
    return versions(REGISTRY_APP_ID.format(registry=registry)) or 0


class CutLog:
    """Writes cuts to the existing shape log ``log``; not thread-safe. Raises ``SinkError`` for storage failures."""

    def __init__(self, log: str, registry: RegistryTable, storage_options: Mapping[str, str] | None = None) -> None:
        self._table = open_shape_log(log, storage_options)
        self._registry = registry
        commits = NewCommits(self._table.table_uri, storage_options)
        self._commits, self._versions = Commits(), AppVersions(commits)

    def note(self, cuts: Mapping[str, int]) -> dict[str, int]:
        """Commit the cuts that are greater than their sources' last ones, durably; return these.

        The current content of the registry table makes them hold. If it lacks a row that earlier cuts needed, it is an
        older copy, and this raises ``SinkError`` from then on.
        """
        self._registry.entries()
        registry = self._registry.table_id
        try:
            refresh(self._table)
            before = registry_row(self._version, registry)
            if not self._registry.has_row_of(before):
                raise SinkError(
                    f"registry table {self._registry.uri} is older than shape log {self._table.table_uri}, and may "
                    "lack ends of shapes; restore the newer one, or remove it, and set write.checkpoint to a new path"
                )
            known = {source: last_cut(self._version, registry, source) for source in cuts}
            greater = {source: lsn for source, lsn in cuts.items() if (at := known[source]) is None or lsn > at}
            if greater:
                notes = {CUT_APP_ID.format(registry=registry, source=source): lsn for source, lsn in greater.items()}
                notes[REGISTRY_APP_ID.format(registry=registry)] = self._registry.last_us
                noted = [Transaction(*each) for each in sorted(notes.items())]
                self._commits.commit(self._table, [], noted)
                self._versions.note(self._table, noted)
        except (DeltaError, OSError) as error:
            raise unwritable(self._table.table_uri, error) from error
        return greater

    def _version(self, app_id: str) -> int | None:
        return self._versions.get(self._table, app_id)
