"""Rows of a shape log with the times of their commits, and folds of it."""

from datetime import datetime, timedelta, timezone
from typing import Any, Final

from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from tests.support.shape_log_rows import Row, commit, item

EPOCH: Final = datetime(2000, 1, 1, tzinfo=timezone.utc)
"""A transaction is written as many seconds after this as its LSN."""
_COMMITTED: Final = [datetime(year, 7, 1, tzinfo=timezone.utc) for year in (1, 1970, 2000, 9999)]
"""When it was committed, as a replication origin sets it: nothing may depend on it."""
NO_MERGES: Final = MergeSettings(merge_files=1000)


def dated(rows: list[Row]) -> list[Row]:
    """The rows with the times of their commits: when they were written, and any at which they were committed."""
    return [
        row | {"written_at": EPOCH + timedelta(seconds=tx), "commit_timestamp": _COMMITTED[tx % len(_COMMITTED)]}
        if row["operation"] == "commit"
        else row
        for row in rows
        for tx in [int(str(row["tx_offset"]))]
    ]


def upkeep_of(log: str, seconds: float, settings: MergeSettings = NO_MERGES, **retain: Any) -> ShapeLogUpkeep:
    kept = RetentionPolicy(timedelta(seconds=seconds), **{"least_dropped": 1, **retain})
    return ShapeLogUpkeep(log, f"{log}_shapes", settings=settings, retain=kept)


def folded(log: str, seconds: float, now: int, **retain: Any) -> int:
    return upkeep_of(log, seconds, **retain).run(EPOCH + timedelta(seconds=now)).folded_shapes


def changes(first: int, count: int, keys: int, shape_id: str = "users") -> list[Row]:
    """One update of a row in each of many transactions; the first ones insert the rows."""
    rows = list[Row]()
    for tx in range(first, first + count):
        key = str(tx % keys)
        operation = "insert" if tx < first + keys and first == 1 else "update"
        rows += [item((tx, 0), operation, key, {"id": key, "n": str(tx)}, shape_id=shape_id)]
        rows += [commit(tx, shape_id=shape_id)]
    return dated(rows)
