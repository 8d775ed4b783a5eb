"""Converts events to rows of the writers' stateful operator: each event unparsed, with the key of its group.

The key of a shape's events is ``(source, shape_group)``. An event that names no shape, such as a table's registry entry
or a malformed event, has the group :data:`NO_SHAPE`. Only the operator parses the events.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.spark.shape_grouping import shape_group_column

NO_SHAPE: Final = ""


def to_write_rows(raw: DataFrame, shape_groups: int) -> DataFrame:
    """Turn events ``(stream, value, place)`` into rows ``(source, shape_group, stream, value, place)``."""
    text = F.try_validate_utf8(F.col("value").cast("string"))
    # A separate column, or Spark would compute it for each use.
    headed = raw.withColumn("head", F.from_json(text, "source STRING, shape_id STRING"))
    shape_group = shape_group_column(F.col("head.shape_id"), shape_groups)
    return headed.select(
        F.coalesce("head.source", F.lit("")).alias("source"),
        F.coalesce(shape_group, F.lit(NO_SHAPE)).alias("shape_group"),
        "stream",
        "value",
        "place",
    )
