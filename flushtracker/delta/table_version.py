"""The version of a table's layout, stored as a table property, and its columns; other tables are refused."""

from collections.abc import Iterable
from typing import Final

from deltalake import DeltaTable

from flushtracker.errors import START_ANEW, SinkError

PROPERTY: Final = "flushtracker-version"
"""All of our tables have the same version."""
VERSION: Final = 1


def require_known_version(table: DeltaTable, kind: str, uri: str) -> None:
    """Raise ``SinkError`` if the table was written by a newer release in an unknown layout."""
    version = table.metadata().configuration.get(PROPERTY, str(VERSION))
    if version != str(VERSION):
        raise SinkError(
            f"{kind} {uri} has version {version:.20}, and this release reads version {VERSION}; upgrade this "
            "program, or go back to the release that wrote the table"
        )


def require_ours(table: DeltaTable, kind: str, uri: str, columns: Iterable[str], remedy: str) -> None:
    """Raise ``SinkError`` unless the table is of the kind: with its columns, in the version that this release reads."""
    require_known_version(table, kind, uri)
    require_columns(table, kind, uri, columns, remedy)
    if PROPERTY not in table.metadata().configuration:
        fact = f"{kind} {uri} has no flushtracker-version: a version before 0.1.0, or another program, wrote it"
        raise SinkError(f"{fact}; {START_ANEW}")


def require_columns(table: DeltaTable, kind: str, uri: str, columns: Iterable[str], remedy: str) -> None:
    """Raise ``SinkError`` if the table lacks one of the columns of its kind."""
    found = {field.name for field in table.schema().fields}
    if missing := [name for name in columns if name not in found]:
        raise SinkError(
            f"{uri} is a Delta table without the columns {', '.join(missing)}, so it is not the {kind}; {remedy}"
        )
