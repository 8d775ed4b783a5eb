"""The *cut* of a source: an LSN up to which the log has every shape of it completely. It is noted in the log itself.

A version of the log has it as an app transaction, whose version only rises. It is true for each shape that the registry
table has as live, if that table is read after the log, and is the one by which the cut was noted, with all that it had
then: so the log also has the id of that table, and when its last row was written. What is noted, and in which order, is
in :mod:`flushtracker.jobs.write.cuts`; how it is read, in :mod:`flushtracker.delta.log.cut_finder`.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from deltalake import Transaction
from deltalake.exceptions import DeltaError

from flushtracker.delta.app_versions import AppVersions
from flushtracker.delta.commits import Commits
from flushtracker.delta.log.table import open_shape_log, unwritable
from flushtracker.delta.new_commits import NewCommits
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import refresh
from flushtracker.errors import SinkError

# The app ids are persisted, so neither can change.
CUT_APP_ID: Final = "flushtracker: complete up to here, by registry table {registry}, source {source}"
REGISTRY_APP_ID: Final = "flushtracker: cuts by the row of this time of registry table {registry}"


Versions: TypeAlias = Callable[[str], int | None]
"""The last version of an app transaction in the open version of the log; its errors are raised by what is below."""


def last_cut(versions: Versions, registry: str, source: str) -> int | None:
    """The source's cut by a registry table, in the open version of the log."""
    return versions(CUT_APP_ID.format(registry=registry, source=source))


def registry_row(versions: Versions, registry: str) -> int:
    """When a row was written that the registry table must have for the cuts of the open version; 0 if there are none.

    In microseconds since 1970.
    """
    return versions(REGISTRY_APP_ID.format(registry=registry)) or 0


class CutLog:
    """Notes cuts in the shape log ``log``, which exists; not thread-safe. Every storage failure is a ``SinkError``."""

    def __init__(self, log: str, registry: RegistryTable, storage_options: Mapping[str, str] | None = None) -> None:
        self._table = open_shape_log(log, storage_options)
        self._registry = registry
        commits = NewCommits(self._table.table_uri, storage_options)
        self._commits, self._versions = Commits(), AppVersions(commits)

    def note(self, cuts: Mapping[str, int]) -> dict[str, int]:
        """Commit the cuts that are greater than those of their sources; returns these. They are durable then.

        What the registry table has now is what makes them true. If it lacks what earlier ones needed, it is an older
        copy, and this raises ``SinkError`` from then on.
        """
        self._registry.entries()
        registry = self._registry.table_id
        try:
            refresh(self._table)
            before = registry_row(self._version, registry)
            if not self._registry.has_row_of(before):
                raise SinkError(
                    f"registry table {self._registry.uri} is older than shape log {self._table.table_uri}, and may "
                    "lack ends of shapes; restore the newer one, or remove it, and set state.checkpoint to a new path"
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
