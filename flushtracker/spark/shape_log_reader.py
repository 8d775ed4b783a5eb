"""Reads shape logs with Spark: what :mod:`flushtracker.delta.log.reader` returns, as DataFrames.

The driver finds the version and the bound; Spark's executors read the rows of that version, which are not collected.
Folding shuffles by key: a task holds only the part of the shape with its keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from flushtracker.delta.log.column_types import decimal_places
from flushtracker.delta.log.columns import SCHEMA
from flushtracker.delta.log.found_shape import FoundShape
from flushtracker.delta.log.shape_finder import ShapeFinder
from flushtracker.shape_log.fold import END_ROWS, TRUNCATE_PARTITION, UPDATE_WITHOUT_INSERT
from flushtracker.shape_log.position import Position
from flushtracker.shapes.item_key import PARTITION
from flushtracker.shapes.table_binding import ColumnBinding
from flushtracker.wal.log_offset import LogOffset

_TYPES: Final = {
    20: "bigint",
    21: "smallint",
    23: "int",
    26: "bigint",
    700: "float",
    701: "double",
    1082: "date",
    1114: "timestamp_ntz",
    1184: "timestamp",
}


@dataclass(frozen=True, slots=True)
class SparkShapeRead:
    """One shape: ``rows`` contain all of it up to ``bound``, and nothing after, in no order.

    ``rows`` can be evaluated while the table keeps the files of the version that was read.
    """

    source: str
    shape_id: str
    rows: DataFrame
    bound: LogOffset | None
    position: Position


class SparkShapeLogReader:
    """An open shape log with its registry table; see ``ShapeLogReader`` for the arguments, and the errors raised."""

    def __init__(
        self,
        spark: SparkSession,
        log: str,
        shapes: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._uri = log
        self._finder = ShapeFinder(log, shapes, storage_options)

    def read_log(
        self,
        shape_id: str,
        after: Position | None = None,
        source: str | None = None,
        *,
        changes_only: bool = False,
        even_if_ended: bool = False,
    ) -> SparkShapeRead:
        """The log of a shape, as :func:`~flushtracker.delta.log.reader.read_shape_log` but without order."""
        found = self._finder.find_log(shape_id, after, source, changes_only=changes_only, even_if_ended=even_if_ended)
        shape, rows = found.shape, self._rows(found.shape, found.condition)
        if found.difference is not None:
            raise shape.lost(found.difference.position)
        return SparkShapeRead(shape.source, shape_id, rows, shape.bound, found.position)

    def read_rows(
        self,
        shape_id: str,
        at: LogOffset | None = None,
        source: str | None = None,
        *,
        typed: bool = False,
        even_if_ended: bool = False,
    ) -> SparkShapeRead:
        """The rows of a shape, as :func:`~flushtracker.delta.log.reader.read_shape` but without order.

        A log that cannot be folded, and a value that does not fit its type, fail the query when it is evaluated. If the
        registry does not know the columns, a query finds those that the log names.
        """
        shape = self._finder.find_rows(shape_id, at, source, typed=typed, even_if_ended=even_if_ended)
        items = self._rows(shape, shape.counted()).where(~F.col("operation").isin(*END_ROWS))
        entry = shape.entry
        if entry is None or entry.definition.keys_have_partitions:
            items = _without_emptied_partitions(items)
        cells = _current_cells(items)
        types = shape.columns
        names = list(types) or sorted(row["column"] for row in cells.select("column").distinct().collect())
        rows = _folded(cells, names)
        if typed:
            rows = rows.select([_typed(F.col(_quoted(name)), types[name]).alias(name) for name in names])
        return SparkShapeRead(shape.source, shape_id, rows, shape.bound, shape.position())

    def _rows(self, shape: FoundShape, condition: str) -> DataFrame:
        return (
            self._spark.read.format("delta")
            .option("versionAsOf", shape.version)
            .load(self._uri)
            .where((F.col("shape_id") == shape.shape_id) & (F.col("source") == shape.source))
            .where(condition)
            .select(SCHEMA.names)
        )


def _without_emptied_partitions(items: DataFrame) -> DataFrame:
    """The items without those of rows that a later truncate of their partition has removed."""
    is_emptying = F.col("operation") == TRUNCATE_PARTITION
    last = F.max(F.struct("tx_offset", "op_offset")).alias("emptied_at")
    emptied = items.where(is_emptying).groupBy(F.col("key").alias("partition")).agg(last)
    rows = items.where(~is_emptying).withColumn("partition", F.regexp_extract("key", PARTITION, 0))
    is_left = F.col("emptied_at").isNull() | (F.struct("tx_offset", "op_offset") > F.col("emptied_at"))
    return rows.join(F.broadcast(emptied), "partition", "left").where(is_left).drop("partition", "emptied_at")


def _current_cells(items: DataFrame) -> DataFrame:
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


def _folded(cells: DataFrame, names: list[str]) -> DataFrame:
    if not names:
        return cells.select([]).limit(0)

    def last_text(name: str) -> Column:
        is_its = F.col("column") == name
        return F.max_by(F.when(is_its, F.col("text")), F.when(is_its, F.col("offset"))).alias(name)

    return cells.groupBy("key").agg(*map(last_text, names)).select([F.col(_quoted(name)) for name in names])


def _typed(text: Column, column: ColumnBinding) -> Column:
    """The column with the type that :mod:`flushtracker.delta.log.column_types` gives it."""
    if column.type_oid == 16:
        return F.when(text.isin("t", "f"), text == "t").when(text.isNotNull(), _unfit(column))
    if column.type_oid == 17:
        return F.when(text.startswith("\\x"), F.unhex(F.substring(text, 3, 2**31 - 1))).when(
            text.isNotNull(), _unfit(column)
        )
    if places := decimal_places(column):
        return text.cast(f"decimal({places[0]},{places[1]})")
    return text.cast(_TYPES[column.type_oid]) if column.type_oid in _TYPES else text


def _unfit(column: ColumnBinding) -> Column:
    return F.raise_error(F.lit(f"column {column.name} has a value that does not fit its type; read it as text"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
