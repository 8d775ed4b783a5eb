"""The group of a shape, in Python and as a column: Spark keeps one state for each ``(source, shape_group)``."""

from zlib import crc32

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)


def shape_group_of(shape_id: str, shape_groups: int) -> int:
    """The CRC-32 of the id's UTF-8, modulo ``shape_groups``. It never changes: the state of a shape is in its group.

    >>> shape_group_of("users", 16), shape_group_of("orders", 16)
    (9, 14)
    """
    return crc32(shape_id.encode()) % shape_groups


def shape_group_column(shape_id: Column, shape_groups: int) -> Column:
    """:func:`shape_group_of` for a column of ids, as text for grouping keys; null for null."""
    return (F.crc32(shape_id.cast("binary")) % shape_groups).cast("string")
