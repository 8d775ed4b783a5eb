"""``Unpublished``: a table that is not in the publication, of which the server therefore sends no changes."""

from collections.abc import Collection
from dataclasses import dataclass

from flushtracker.shapes.table_binding import PartitionBinding, TableBinding


@dataclass(frozen=True, slots=True)
class Unpublished:
    """Why a table is not in the publication, and what somebody else has to run so that it is, if anything helps."""

    reason: str
    statement: str | None


def is_unpublished(table: TableBinding) -> bool:
    """Whether changes of the table are not sent; of a partitioned one, those of any partition that it has."""
    members: Collection[TableBinding | PartitionBinding] = table.partitions or (table,)
    return any(not member.published_by for member in members)
