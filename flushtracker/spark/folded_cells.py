"""Folds the items of a shape's log with Spark: the cells that are set in the rows that exist."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from flushtracker.shape_log.fold import TRUNCATE_PARTITION, UPDATE_WITHOUT_INSERT
from flushtracker.shapes.item_key import PARTITION


def without_emptied_partitions(items: DataFrame) -> DataFrame:
    """The items without those of rows that a later truncate of their partition has removed."""
    is_emptying = F.col("operation") == TRUNCATE_PARTITION
    last = F.max(F.struct("tx_offset", "op_offset")).alias("emptied_at")
    emptied = items.where(is_emptying).groupBy(F.col("key").alias("partition")).agg(last)
    rows = items.where(~is_emptying).withColumn("partition", F.regexp_extract("key", PARTITION, 0))
    is_left = F.col("emptied_at").isNull() | (F.struct("tx_offset", "op_offset") > F.col("emptied_at"))
    return rows.join(F.broadcast(emptied), "partition", "left").where(is_left).drop("partition", "emptied_at")


def current_cells(items: DataFrame) -> DataFrame:
    """The cells that items have set in the rows that exist: ``key, offset, column, text``."""
    items = items.withColumn("offset", F.struct("tx_offset", "op_offset"))
    truncated = items.where(F.col("operation") == "truncate").agg(F.max("offset").alias("truncated"))
    sets = F.col("operation").isin("insert", "delete")
    of_key = Window.partitionBy("key")
    is_partial = (F.col("operation") == "update") & ~F.col("set_by").eqNullSafe("insert")
    checked = F.when(is_partial, F.raise_error(F.lit(UPDATE_WITHOUT_INSERT)).cast("boolean")).otherwise(F.lit(True))  # noqa: FBT003
    return (
        items.where(F.col("operation") != "truncate")
        .crossJoin(F.broadcast(truncated))
        .where(F.col("truncated").isNull() | (F.col("offset") > F.col("truncated")))
        .withColumn("set_at", F.max(F.when(sets, F.col("offset"))).over(of_key))
        .withColumn("set_by", F.max_by(F.when(sets, F.col("operation")), F.when(sets, F.col("offset"))).over(of_key))
        .where(F.col("set_at").isNull() | (F.col("offset") >= F.col("set_at")))
        .where(F.col("operation") != "delete")
        .where(checked)
        .select(
            "key",
            "offset",
            F.explode(F.from_json("value", "map<string,string>", {"mode": "FAILFAST"})).alias("column", "text"),
        )
    )


def row_cells(cells: DataFrame) -> DataFrame:
    """The rows as ``key`` and ``cells``, an array of ``column`` and ``text`` that is sorted, so that rows compare."""
    last = F.max_by("text", "offset").alias("text")
    each = F.array_sort(F.collect_list(F.struct("column", "text"))).alias("cells")
    return cells.groupBy("key", "column").agg(last).groupBy("key").agg(each)
