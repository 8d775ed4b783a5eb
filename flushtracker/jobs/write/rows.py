"""Turns events into the rows that the writers' stateful operator reads: each event as it is, with its group.

The key of a shape's events is ``(source, shape_group)``. What names no shape, such as a table's registry entry or an
event that cannot be read, has the group :data:`NO_SHAPE`. The events themselves are read in the operator, once.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.spark.shape_group import shape_group_column

NO_SHAPE: Final = ""


def to_write_rows(raw: DataFrame, shape_groups: int) -> DataFrame:
    """Turn events ``(stream, value, place)`` into rows ``(source, shape_group, stream, value, place)``."""
    text = F.try_validate_utf8(F.col("value").cast("string"))
    # A column of its own: written where it is used, it would be computed for each use.
    headed = raw.withColumn("head", F.from_json(text, "source STRING, shape_id STRING"))
    shape_group = shape_group_column(F.col("head.shape_id"), shape_groups)
    return headed.select(
        F.coalesce("head.source", F.lit("")).alias("source"),
        F.coalesce(shape_group, F.lit(NO_SHAPE)).alias("shape_group"),
        "stream",
        "value",
        "place",
    )
