"""The difference that a follower gets, with Spark: what :mod:`flushtracker.delta.log.difference` has, without order."""

from collections.abc import Collection
from datetime import datetime
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from flushtracker.delta.log.columns import SCHEMA
from flushtracker.delta.log.difference import Difference
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.wal.log_offset import OP_INFINITY

_AFTER_DELETES: Final = 1 << 61
"""What is added to the offsets of updates and inserts, so that they follow all deletes."""

_TYPES: Final = {"commit_timestamp": "timestamp", "written_at": "timestamp"}
_BIGINTS: Final = ("tx_offset", "op_offset", "xid", "chunk")


def changes_between(before: DataFrame, after: DataFrame, key_columns: Collection[str]) -> DataFrame:
    """The changes as ``operation, key, value, old_value``, as in :mod:`flushtracker.delta.log.difference_rows`.

    Both have the columns ``key`` and ``cells`` of ``row_cells``.
    """
    old, new = F.col("old"), F.col("new")
    joined = before.withColumnRenamed("cells", "old").join(after.withColumnRenamed("cells", "new"), "key", "full_outer")
    was, now = F.map_from_entries(old), F.map_from_entries(new)
    is_other = [~was[F.lit(name)].eqNullSafe(now[F.lit(name)]) for name in key_columns]
    lacks = F.size(F.array_except(F.map_keys(was), F.map_keys(now))) > 0
    changed = F.filter(old, lambda cell: ~now[cell["column"]].eqNullSafe(cell["text"]))
    delete, insert = _change("delete", old), _change("insert", new)
    changes = (
        F.when(old.isNull(), F.array(insert))
        .when(new.isNull(), F.array(delete))
        .when(reduce(Column.__or__, is_other, lacks), F.array(delete, insert))
        .otherwise(F.array(_change("update", new, changed)))
    )
    return (
        joined.where(~old.eqNullSafe(new)).select("key", F.explode(changes).alias("change")).select("key", "change.*")
    )


def difference_rows(changes: DataFrame, difference: Difference, taken_at: datetime | None) -> DataFrame:
    """The changes as rows of a log, and the row ``commit`` of the difference."""
    number = F.monotonically_increasing_id()
    offset = F.when(F.col("operation") == "delete", number).otherwise(number + F.lit(_AFTER_DELETES))
    ends = {"op_offset": OP_INFINITY, "operation": COMMIT, "commit_timestamp": taken_at}
    commit = changes.sparkSession.range(1).select(
        _columns(difference, {name: F.lit(each) for name, each in ends.items()})
    )
    columns = {name: F.col(name) for name in ("key", "operation", "value", "old_value")}
    return changes.select(_columns(difference, {"op_offset": offset, **columns})).unionByName(commit)


def _columns(difference: Difference, columns: dict[str, Column]) -> list[Column]:
    same = difference.same
    return [
        columns.get(name, F.lit(same.get(name)))
        .cast("bigint" if name in _BIGINTS else _TYPES.get(name, "string"))
        .alias(name)
        for name in SCHEMA.names
    ]


def _change(operation: str, value: Column, old_value: Column | None = None) -> Column:
    was = F.lit(None).cast("string") if old_value is None else _json(old_value)
    return F.struct(F.lit(operation).alias("operation"), _json(value).alias("value"), was.alias("old_value"))


def _json(cells: Column) -> Column:
    return F.to_json(F.map_from_entries(cells), {"ignoreNullFields": "false"})
