"""The rows of a shape with subqueries, with Spark: those of its own table for which its condition is true.

What the subqueries return is collected when the shape is read, and is in memory, on the driver and in each Python
worker. The rows of the shape's own table stay on executors. There the condition is evaluated as by the other reader
(:class:`~flushtracker.shapes.where.joined_condition.JoinedCondition`), so Python workers need what that imports.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import compress
from operator import or_

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from flushtracker.shapes.item_key import joined_prefix
from flushtracker.shapes.where.joined_condition import JoinedCondition
from flushtracker.wal.changes import TableName


def joined_rows(rows: DataFrame, table: TableName, condition: JoinedCondition, names: Sequence[str]) -> DataFrame:
    """The columns ``names`` of the rows of ``table`` that are in the shape, as text.

    ``rows`` are those of all tables (:func:`~flushtracker.spark.folded_cells.row_cells`). Raises ``DecodeError`` if the
    condition of a subquery has no outcome for a row; for a row of ``table`` it fails the query.
    """
    inner = {_prefix(name): name for name in sorted(condition.inner_tables)}
    for row in rows.where(_begins_with(*inner)).toLocalIterator():
        (name,) = (name for prefix, name in inner.items() if row["key"].startswith(prefix))
        condition.add(name, {cell["column"]: cell["text"] for cell in row["cells"]})
    condition.settle()
    schema = T.StructType([T.StructField(name, T.StringType()) for name in names])
    matching = partial(_matching, condition, tuple(names))
    return rows.where(_begins_with(_prefix(table))).select("cells").mapInArrow(matching, schema)


def _prefix(table: TableName) -> str:
    """What begins the keys of a table's rows, and of no other table's."""
    return f"{joined_prefix(table)}/"


def _begins_with(*prefixes: str) -> Column:
    return reduce(or_, (F.col("key").startswith(prefix) for prefix in prefixes))


def _matching(
    condition: JoinedCondition, names: tuple[str, ...], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on executors, with a copy of the condition."""
    for batch in batches:
        rows = [{cell["column"]: cell["text"] for cell in cells} for cells in batch.column("cells").to_pylist()]
        found = list(compress(rows, map(condition.matches, rows)))
        columns = [pa.array([row.get(name) for row in found], pa.string()) for name in names]
        yield pa.RecordBatch.from_arrays(columns, names=list(names))
