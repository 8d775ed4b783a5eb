"""Warns that a new partition's REPLICA IDENTITY may end shapes: when they are defined, and at its first change.

PostgreSQL gives every new partition REPLICA IDENTITY DEFAULT. Its inserts reach the shapes all the same, so there is
time to set another one until its first UPDATE or DELETE.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Final

from flushtracker.capture.shapes.delayed_shapes import NewShape
from flushtracker.errors import listed
from flushtracker.shapes.old_rows import lacked_by_new_partitions, new_partitions_note
from flushtracker.shapes.shape import Shape
from flushtracker.wal.changes import Relation

logger = logging.getLogger(__name__)

_MOST_READ: Final = 1000
"""The number of a table's shapes that are checked; there may be a million."""


def warn_of_new_partitions(new: Iterable[NewShape]) -> None:
    """Warn about tables whose next partition may end new shapes."""
    shape_ids, notes = defaultdict[int, list[str]](list), dict[int, str]()
    for shape in new:
        for table in shape.tables:
            if lacked := lacked_by_new_partitions(shape.definition, table):
                shape_ids[table.oid].append(shape.definition.id)
                notes.setdefault(table.oid, new_partitions_note(table, lacked))
    for oid, note in notes.items():
        logger.warning("new partitions may end shapes shape_ids=%s reason=%s", listed(shape_ids[oid]), note)


def warn_of_partition(partition: Relation, parts: Iterable[Shape]) -> None:
    """Log the shapes that need more of the partition's old rows than its replica identity has."""
    found = [(part, lacks) for part in islice(parts, _MOST_READ) if (lacks := part.identity_lacks(partition))]
    if found:
        shape_ids = listed([part.definition.id for part, _ in found])
        part, (lack, *_) = found[0]
        reason = lack.error(part.definition, [partition.table])
        logger.warning("partition's first update or delete ends shapes shape_ids=%s reason=%s", shape_ids, reason)
