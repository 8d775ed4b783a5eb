"""The version of a table's layout, a property of the table: a later one is refused."""

from typing import Final

from deltalake import DeltaTable

from flushtracker.errors import SinkError

PROPERTY: Final = "flushtracker-version"
"""Persisted, so it cannot change. A table without it has version 1; all tables of ours have the same one."""
VERSION: Final = 1


def require_readable(table: DeltaTable, kind: str, uri: str) -> None:
    """Raise ``SinkError`` if a newer release has written the table in a layout that this one does not know."""
    version = table.metadata().configuration.get(PROPERTY, "1")
    if version != str(VERSION):
        raise SinkError(
            f"{kind} {uri} has version {version:.20}, and this release reads version {VERSION}; upgrade this "
            "program, or go back to the release that wrote the table"
        )
