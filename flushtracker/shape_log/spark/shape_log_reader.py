"""Reads shape logs with Spark: the same as :mod:`flushtracker.shape_log.table.reader`, as DataFrames.

The driver determines the version and the bound; executors read the rows of that version, which are not collected.
Folding sorts by key (:mod:`flushtracker.shape_log.spark.folded_rows`), so a task holds a few thousand items at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from flushtracker.shape_log.position import Position
from flushtracker.shape_log.spark.folded_rows import difference_frame, folded_frame, joined_frame
from flushtracker.shape_log.table.arrow_types import decimal_places
from flushtracker.shape_log.table.columns import SCHEMA
from flushtracker.shape_log.table.found_shape import FoundShape, not_followed
from flushtracker.shape_log.table.joined_rows import joined_condition
from flushtracker.shape_log.table.shape_finder import ShapeFinder
from flushtracker.shapes.item_key import JOINED_KEY
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
    """One shape: ``rows`` contain all of it up to ``bound``, and nothing after, unordered; see ``ShapeRead``.

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
        """Where a follower continues; raises ``PositionError`` as ``ShapeRead.position``."""
        if self.has_subqueries:
            raise not_followed(self.shape_id)
        return self.reached


class SparkShapeLogReader:
    """An open shape log with its registry table; see ``ShapeLogReader`` for the arguments and errors."""

    def __init__(
        self, spark: SparkSession, log: str, shapes: str | None = None, storage_options: Mapping[str, str] | None = None
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
        """The log of a shape, as :func:`~flushtracker.shape_log.table.reader.read_shape_log` but unordered."""
        found = self._finder.find_log(shape_id, after, source, changes_only=changes_only, even_if_ended=even_if_ended)
        shape = found.shape
        if (difference := found.difference) is None:
            rows = self._rows(shape, found.condition)
        else:
            sides = self._folded(difference.before), self._folded(difference.after)
            rows = difference_frame(*sides, difference, self._finder.taken_at(difference))
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
        """The rows of a shape, as :func:`~flushtracker.shape_log.table.reader.read_shape` but unordered.

        If the log cannot be folded, or a value does not fit its type, the query fails when it is evaluated. Some
        queries run at once: for the truncates of the log, for its columns if the registry does not have them, and for
        the results of subqueries.
        """
        shape = self._finder.find_rows(shape_id, at, source, typed=typed, even_if_ended=even_if_ended)
        rows, types = self._folded(shape), shape.columns
        if shape.entry is not None and shape.has_subqueries:
            definition = shape.entry.definition
            rows = joined_frame(rows, definition.table, joined_condition(shape, definition))
        elif shape.entry is None or shape.entry.is_condensed:
            rows = _of_one_table(rows)
        cells = rows.select(F.from_json("value", "map<string,string>", {"mode": "FAILFAST"}).alias("cells"))
        names = list(types) or _names(cells)
        rows = cells.select([F.col("cells")[name].alias(name) for name in names])
        if typed:
            rows = rows.select([_typed(F.col(_quoted(name)), types[name]).alias(name) for name in names])
        return SparkShapeRead(
            shape.source, shape_id, rows, shape.bound, shape.position(), has_subqueries=shape.has_subqueries
        )

    def _folded(self, shape: FoundShape) -> DataFrame:
        return folded_frame(self._rows(shape, shape.counted()))

    def _rows(self, shape: FoundShape, condition: str) -> DataFrame:
        return (
            self._spark.read.format("delta")
            .option("versionAsOf", shape.version)
            .load(self._uri)
            .where((F.col("shape_id") == shape.shape_id) & (F.col("source") == shape.source))
            .where(condition)
            .select(SCHEMA.names)
        )


def _of_one_table(rows: DataFrame) -> DataFrame:
    """The same rows; the query fails for rows of a shape with subqueries, whose definition is unknown."""
    fact = F.raise_error(F.lit("the shape has subqueries: its log has rows of several tables, not joined here"))
    is_joined = F.col("key").rlike(JOINED_KEY)
    return rows.where(F.when(is_joined, fact.cast("boolean")).otherwise(F.lit(True)))  # noqa: FBT003


def _names(cells: DataFrame) -> list[str]:
    names = cells.select(F.explode(F.map_keys("cells")).alias("name")).distinct()
    return sorted(row["name"] for row in names.collect())


def _typed(text: Column, column: ColumnBinding) -> Column:
    """The column with its type from :mod:`flushtracker.shape_log.table.arrow_types`."""
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
