"""Features of Delta that others may have enabled in a table of ours, with which it is not written.

deltalake reports one that it cannot write as a conflict with another commit, so a driver would believe that it was
fenced. And what deletes rows by deletion vectors, or renames columns, is not known to the upkeep, which copies the rows
of files. Each commit checks the table before, so the last version of ours is always one without such a feature, and
Spark can restore it: of later versions nothing is ours.
"""

from typing import Final

from deltalake import DeltaTable

from flushtracker.errors import SinkError

NOTE: Final = "flushtracker: "
"""Begins the keys of the notes of our commits. Persisted, so it cannot change."""
_WRITABLE: Final = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "invariants", "timestampNtz", "v2Checkpoint"}
)
_MAPPING: Final = "delta.columnMapping.mode"


def require_writable(table: DeltaTable, kind: str, uri: str) -> None:
    """Raise ``SinkError`` if the table has features with which it is not to be written.

    Raises ``DeltaError`` or ``OSError`` if it has, and the storage fails.
    """
    found = {*(table.protocol().writer_features or ())} - _WRITABLE
    if table.metadata().configuration.get(_MAPPING, "none") != "none":
        found.add("columnMapping")
    if found:
        raise SinkError(
            f"{kind} {uri} has the table features {', '.join(sorted(found))}, with which this program does not write "
            f"it, and which another one has enabled: {_way_back(table, uri)}, and have nothing but these jobs write to "
            "the table"
        )


def _way_back(table: DeltaTable, uri: str) -> str:
    """How to return to the last version that a program of ours has written."""
    for commit in table.history():
        if any(key.startswith(NOTE) for key in commit):
            return (
                "go back to the last version of these jobs with Spark (SET "
                "spark.databricks.delta.restore.protocolDowngradeAllowed = true; RESTORE TABLE "
                f"delta.`{uri}` TO VERSION AS OF {commit['version']})"
            )
    return (
        "its log no longer has a version of these jobs that Spark could restore, so remove the features with the "
        "program that enabled them"
    )
