"""Turns events into the rows that the writers' stateful operator reads: each event as it is, with its group.

The key of a shape's events is ``(source, shape_group)``. What names no shape, such as a table's registry entry or an
event that cannot be read, has the group :data:`NO_SHAPE`. The events themselves are read in the operator, once.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

NO_SHAPE: Final = ""


def to_write_rows(raw: DataFrame, shape_groups: int) -> DataFrame:
    """Turn events ``(stream, value, place)`` into rows ``(source, shape_group, stream, value, place)``."""
    text = F.try_validate_utf8(F.col("value").cast("string"))
    # A column of its own: written where it is used, it would be computed for each use.
    headed = raw.withColumn("head", F.from_json(text, "source STRING, shape_id STRING"))
    shape_id = F.col("head.shape_id")
    return headed.select(
        F.coalesce("head.source", F.lit("")).alias("source"),
        F.when(shape_id.isNull(), NO_SHAPE).otherwise(shape_group_of(shape_id, shape_groups)).alias("shape_group"),
        "stream",
        "value",
        "place",
    )


def shape_group_of(shape_id: Column, shape_groups: int) -> Column:
    """A shape's group, which never changes; with 0 ``shape_groups`` every shape is its own group."""
    if shape_groups == 0:
        return shape_id
    return F.pmod(F.xxhash64(shape_id), F.lit(shape_groups)).cast("string")
