"""Which tables are refused: of a later layout, whose version is a property of the table, or with features of others'.

Somebody may enable a feature of Delta in a table of ours. deltalake reports one that it cannot write as a conflict with
another commit, so a driver would believe that it was fenced. And what deletes rows by deletion vectors, or renames
columns, is not known to the upkeep, which copies the rows of files.
"""

from typing import Final

from deltalake import DeltaTable

from flushtracker.errors import SinkError

PROPERTY: Final = "flushtracker-version"
"""Persisted, so it cannot change. A table without it has version 1; all tables of ours have the same one."""
VERSION: Final = 1
_WRITABLE: Final = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "invariants", "timestampNtz", "v2Checkpoint"}
)
_MAPPING: Final = "delta.columnMapping.mode"


def require_readable(table: DeltaTable, kind: str, uri: str) -> None:
    """Raise ``SinkError`` if a newer release has written the table in a layout that this one does not know."""
    version = table.metadata().configuration.get(PROPERTY, "1")
    if version != str(VERSION):
        raise SinkError(
            f"{kind} {uri} has version {version:.20}, and this release reads version {VERSION}; upgrade this "
            "program, or go back to the release that wrote the table"
        )


def require_writable(table: DeltaTable, kind: str, uri: str) -> None:
    """Raise ``SinkError`` if the table has features with which it is not to be written."""
    found = {*(table.protocol().writer_features or ())} - _WRITABLE
    if table.metadata().configuration.get(_MAPPING, "none") != "none":
        found.add("columnMapping")
    if found:
        names = ", ".join(sorted(found))
        raise SinkError(
            f"{kind} {uri} has the table features {names}, with which this program does not write it, and which "
            "another one has enabled: drop them with Spark (ALTER TABLE … DROP FEATURE; for clustering ALTER TABLE … "
            "CLUSTER BY NONE first), and have nothing but these jobs write to the table"
        )
