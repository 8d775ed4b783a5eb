"""The version of a table's layout, stored as a table property; a later one is refused."""

from typing import Final

from deltalake import DeltaTable

from flushtracker.errors import START_ANEW, SinkError

PROPERTY: Final = "flushtracker-version"
"""All of our tables have the same version."""
VERSION: Final = 1


def require_readable(table: DeltaTable, kind: str, uri: str) -> None:
    """Raise ``SinkError`` if the table was written by a newer release in an unknown layout."""
    version = table.metadata().configuration.get(PROPERTY, str(VERSION))
    if version != str(VERSION):
        raise SinkError(
            f"{kind} {uri} has version {version:.20}, and this release reads version {VERSION}; upgrade this "
            "program, or go back to the release that wrote the table"
        )


def require_version(table: DeltaTable, kind: str, uri: str) -> None:
    """Raise ``SinkError`` if the table has no version, although it has the columns of its kind."""
    if PROPERTY not in table.metadata().configuration:
        fact = f"{kind} {uri} has no flushtracker-version: a version before 0.1.0, or another program, wrote it"
        raise SinkError(f"{fact}; {START_ANEW}")
