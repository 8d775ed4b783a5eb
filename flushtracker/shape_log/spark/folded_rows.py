"""Folds the logs of shapes with Spark, by the functions of :mod:`flushtracker.shape_log.table`, which run on executors.

All items of a row are in one task, in offset order, so a task holds a few thousand items at a time. The truncates of a
shape, and the results of its subqueries, are collected when it is read, and each task has a copy.
"""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from functools import partial, reduce
from itertools import groupby, islice
from operator import itemgetter, or_
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from flushtracker.shape_log.fold import END_ROWS, TRUNCATE, TRUNCATE_PARTITION, columns_of
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.table.columns import SCHEMA
from flushtracker.shape_log.table.difference import Difference
from flushtracker.shape_log.table.difference_rows import RowChange, row_changes
from flushtracker.shape_log.table.fold_items import ITEM_COLUMNS, ITEM_ORDER, fold_items
from flushtracker.shape_log.truncates import Truncates
from flushtracker.shapes.item_key import joined_prefix
from flushtracker.shapes.where.joined_condition import JoinedCondition
from flushtracker.wal.changes import TableName
from flushtracker.wal.log_offset import OP_INFINITY

_ROWS: Final = "tx_offset bigint, op_offset bigint, operation string, key string, value string"
_CHANGES: Final = "key string, operation string, value string, old_value string"
_PER_BATCH: Final = 10_000
_AFTER_DELETES: Final = 1 << 61
"""Added to the offsets of updates and inserts, so that they follow all deletes."""

_TYPES: Final = {"commit_timestamp": "timestamp", "written_at": "timestamp"}
_BIGINTS: Final = ("tx_offset", "op_offset", "xid", "chunk")


def folded_frame(log: DataFrame) -> DataFrame:
    """The result of folding the rows of a log: rows as inserts with the columns of ``fold_items``.

    The query fails with the ``DecodeError`` of ``fold_items``, if that raises one.
    """
    items = log.where(~F.col("operation").isin(*END_ROWS)).select(*ITEM_COLUMNS)
    is_truncate = F.col("operation").isin(TRUNCATE, TRUNCATE_PARTITION)
    truncates = Truncates()
    for row in items.where(is_truncate).select("tx_offset", "op_offset", "operation", "key").collect():
        truncates.add((row["tx_offset"], row["op_offset"]), None if row["operation"] == TRUNCATE else row["key"])
    by_key = items.where(~is_truncate).repartition("key").sortWithinPartitions(*ITEM_ORDER)
    return by_key.mapInArrow(partial(_folded, truncates), _ROWS)


def _folded(truncates: Truncates, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for table in fold_items((pa.Table.from_batches([batch]) for batch in batches if len(batch)), truncates):
        yield from table.to_batches()


def joined_frame(rows: DataFrame, table: TableName, condition: JoinedCondition) -> DataFrame:
    """The rows of ``table`` that are in a shape with subqueries; ``rows`` are the folded rows of all tables.

    Raises ``DecodeError`` if the condition of a subquery has no outcome for a row; for a row of ``table`` it fails the
    query.
    """
    inner = {f"{joined_prefix(name)}/": name for name in sorted(condition.inner_tables)}
    is_inner = reduce(or_, map(F.col("key").startswith, inner))
    for row in rows.where(is_inner).select("key", "value").toLocalIterator():
        (name,) = (name for prefix, name in inner.items() if row["key"].startswith(prefix))
        condition.add(name, columns_of(row["value"]))
    condition.settle()
    own = rows.where(F.col("key").startswith(f"{joined_prefix(table)}/"))
    return own.mapInArrow(partial(_matching, condition), _ROWS)


def _matching(condition: JoinedCondition, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        is_in = [condition.matches(columns_of(value)) for value in batch.column("value").to_pylist()]
        yield batch.filter(pa.array(is_in, pa.bool_()))


def difference_frame(
    before: DataFrame, after: DataFrame, difference: Difference, taken_at: datetime | None
) -> DataFrame:
    """The rows of a difference, the same as by :mod:`flushtracker.shape_log.table.difference`, but unordered.

    ``before`` and ``after`` are folded rows.
    """
    sides = [rows.select("key", F.lit(side).alias("side"), "value") for side, rows in enumerate((before, after))]
    by_key = sides[0].unionByName(sides[1]).repartition("key").sortWithinPartitions("key", "side")
    changes = by_key.mapInArrow(partial(_changes, tuple(difference.after.key_columns)), _CHANGES)
    number = F.monotonically_increasing_id()
    offset = F.when(F.col("operation") == "delete", number).otherwise(number + F.lit(_AFTER_DELETES))
    ends = {"op_offset": OP_INFINITY, "operation": COMMIT, "commit_timestamp": taken_at}
    commit = changes.sparkSession.range(1).select(
        _columns(difference, {name: F.lit(each) for name, each in ends.items()})
    )
    columns = {name: F.col(name) for name in changes.columns}
    return changes.select(_columns(difference, {"op_offset": offset, **columns})).unionByName(commit)


def _changes(key_columns: Collection[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    changes = (change for key, of_key in groupby(rows, itemgetter(0)) for change in _of_key(key, of_key, key_columns))
    while found := list(islice(changes, _PER_BATCH)):
        _, keys, operations, values, old_values = zip(*found, strict=True)
        columns = [pa.array(column, pa.string()) for column in (keys, operations, values, old_values)]
        yield pa.RecordBatch.from_arrays(columns, names=["key", "operation", "value", "old_value"])


def _of_key(key: str, rows: Iterable[tuple[str, int, str]], key_columns: Collection[str]) -> Iterator[RowChange]:
    values = {side: value for _, side, value in rows}
    was, now = values.get(0), values.get(1)
    return iter(()) if was == now else row_changes(key, was, now, key_columns)


def _columns(difference: Difference, columns: dict[str, Column]) -> list[Column]:
    same = difference.same
    return [
        columns.get(name, F.lit(same.get(name)))
        .cast("bigint" if name in _BIGINTS else _TYPES.get(name, "string"))
        .alias(name)
        for name in SCHEMA.names
    ]
