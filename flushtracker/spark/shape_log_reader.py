"""Reads shape logs with Spark: what :mod:`flushtracker.delta.log.reader` returns, as DataFrames.

The driver finds the version and the bound; Spark's executors read the rows of that version, which are not collected.
Folding shuffles by key: a task holds only the part of the shape with its keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from flushtracker.delta.log.column_types import decimal_places
from flushtracker.delta.log.columns import SCHEMA
from flushtracker.delta.log.found_shape import FoundShape, not_followed
from flushtracker.delta.log.joined_rows import joined_condition
from flushtracker.delta.log.shape_finder import ShapeFinder
from flushtracker.shape_log.fold import END_ROWS
from flushtracker.shape_log.position import Position
from flushtracker.shapes.item_key import JOINED_KEY
from flushtracker.shapes.table_binding import ColumnBinding
from flushtracker.spark.difference import changes_between, difference_rows
from flushtracker.spark.folded_cells import current_cells, row_cells, without_emptied_partitions
from flushtracker.spark.joined_rows import joined_rows
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
    """One shape: ``rows`` contain all of it up to ``bound``, and nothing after, in no order; see ``ShapeRead``.

    ``rows`` can be evaluated while the table keeps the files of the version that was read.
    """

    source: str
    shape_id: str
    rows: DataFrame
    bound: LogOffset | None
    reached: Position
    has_subqueries: bool = False

    @property
    def position(self) -> Position:
        """From where a follower continues; raises ``PositionError`` as that of ``ShapeRead``."""
        if self.has_subqueries:
            raise not_followed(self.shape_id)
        return self.reached


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
        shape = found.shape
        if (difference := found.difference) is None:
            rows = self._rows(shape, found.condition)
        else:
            changes = changes_between(
                row_cells(self._cells(difference.before)),
                row_cells(self._cells(difference.after)),
                difference.after.key_columns,
            )
            rows = difference_rows(changes, difference, self._finder.taken_at(difference))
        return SparkShapeRead(shape.source, shape_id, rows, found.bound, found.position)

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
        registry does not know the columns, a query finds those that the log names, and of a shape with subqueries what
        these return.
        """
        shape = self._finder.find_rows(shape_id, at, source, typed=typed, even_if_ended=even_if_ended)
        cells, types = self._cells(shape), shape.columns
        if shape.entry is not None and shape.has_subqueries:
            definition, names = shape.entry.definition, list(types)
            rows = joined_rows(row_cells(cells), definition.table, joined_condition(shape, definition), names)
        else:
            if shape.entry is None or shape.entry.is_condensed:
                cells = _of_one_table(cells)
            names = list(types) or sorted(row["column"] for row in cells.select("column").distinct().collect())
            rows = _folded(cells, names)
        if typed:
            rows = rows.select([_typed(F.col(_quoted(name)), types[name]).alias(name) for name in names])
        return SparkShapeRead(
            shape.source, shape_id, rows, shape.bound, shape.position(), has_subqueries=shape.has_subqueries
        )

    def _cells(self, shape: FoundShape) -> DataFrame:
        items = self._rows(shape, shape.counted()).where(~F.col("operation").isin(*END_ROWS))
        if shape.may_empty_by_prefix:
            items = without_emptied_partitions(items)
        return current_cells(items)

    def _rows(self, shape: FoundShape, condition: str) -> DataFrame:
        return (
            self._spark.read.format("delta")
            .option("versionAsOf", shape.version)
            .load(self._uri)
            .where((F.col("shape_id") == shape.shape_id) & (F.col("source") == shape.source))
            .where(condition)
            .select(SCHEMA.names)
        )


def _of_one_table(cells: DataFrame) -> DataFrame:
    """The same cells; the query fails for those of a shape with subqueries, whose definition is not known."""
    fact = F.raise_error(F.lit("the shape has subqueries: its log has rows of several tables, not joined here"))
    is_joined = F.col("key").rlike(JOINED_KEY)
    return cells.where(F.when(is_joined, fact.cast("boolean")).otherwise(F.lit(True)))  # noqa: FBT003


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
