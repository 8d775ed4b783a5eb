"""Refuses to write a table in which someone has enabled unsupported Delta features.

deltalake reports an unsupported feature as a conflict with another commit, so a driver would think that it was fenced.
And upkeep, which copies the rows of files, does not know deletion vectors or renamed columns. Each commit checks the
table first, so our last version never has such a feature, and Spark can restore it without losing anything of ours.
"""

from typing import Final

from deltalake import DeltaTable

from flushtracker.delta.storage import commit_notes
from flushtracker.errors import SinkError

NOTE: Final = "flushtracker: "
"""Prefix of the keys of notes in our commits. Persisted, so it cannot change."""
_WRITABLE: Final = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "invariants", "timestampNtz", "v2Checkpoint"}
)
_MAPPING: Final = "delta.columnMapping.mode"


def require_writable(table: DeltaTable, kind: str, uri: str) -> None:
    """Raise ``SinkError`` if the table has unsupported features.

    In that case, may also raise ``DeltaError`` or ``OSError`` if the storage fails.
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
    """How to return to the last version that was written by this project."""
    for commit in commit_notes(table):
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
