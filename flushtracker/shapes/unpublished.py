"""``Unpublished``: a table that is not in the publication, so the server sends none of its changes."""

from collections.abc import Collection
from dataclasses import dataclass

from flushtracker.shapes.table_binding import PartitionBinding, TableBinding


@dataclass(frozen=True, slots=True)
class Unpublished:
    """Why a table is not in the publication, and the statement with which an administrator adds it, if one does."""

    reason: str
    statement: str | None


def is_unpublished(table: TableBinding) -> bool:
    """Whether changes of the table are not sent; for a partitioned table, those of any partition."""
    members: Collection[TableBinding | PartitionBinding] = table.partitions or (table,)
    return any(not member.published_by for member in members)
