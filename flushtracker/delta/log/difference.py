"""``Difference``: what a follower gets instead of changes that it can no longer read one by one.

A follower has the rows that some snapshot gives with the transactions up to its position. If another snapshot has
replaced that one, the shape goes on from other rows: those of the new snapshot, with the transactions up to a place
that it does not contain. The difference of the two is one transaction, of the changes by key. It is computed by whoever
reads it, from one version of the log, and written nowhere; a reader that fails computes it again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable

from flushtracker.delta.log.columns import SCHEMA
from flushtracker.delta.log.difference_rows import changes_between
from flushtracker.delta.log.folded_shape import folded_rows
from flushtracker.delta.log.found_shape import FoundShape
from flushtracker.delta.storage import query_rows
from flushtracker.errors import DecodeError, PositionError
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.position import Position
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset


@dataclass(frozen=True, slots=True)
class Difference:
    """From what a follower at ``position`` has, ``before``, to the shape ``after`` it; both in one version.

    Its rows have ``tx_offset``, which is below that of every transaction to read next, and above the position's if that
    is of the same source. No transaction has it but one that the difference contains.
    """

    position: Position
    before: FoundShape
    after: FoundShape
    tx_offset: int

    @property
    def same(self) -> dict[str, object]:
        """The columns that are the same in all of its rows. It is no transaction of the server, so the xid is 0."""
        return {
            "source": self.after.source,
            "shape_id": self.after.shape_id,
            "tx_offset": self.tx_offset,
            "xid": 0,
            "chunk": self.after.attempt,
        }

    def unknown(self, error: DecodeError) -> PositionError:
        """The error for a follower whose rows, or those that follow, cannot be known."""
        return PositionError(
            f"position {self.position}: what {self.after.name} had there, or has since, cannot be folded ({error}); "
            "read the shape again from its beginning"
        )


def difference_rows(table: DeltaTable, difference: Difference, taken_at: datetime | None) -> Iterator[pa.Table]:
    """The rows of the difference as those of a log, in their order; the last is a ``commit`` row, also if it is alone.

    That has the time ``taken_at``. All has been read when the first are returned. Raises ``PositionError`` if one of
    the two cannot be folded; ``SinkError``, ``DeltaError`` or ``OSError`` if the table cannot be read.
    """
    count = 0
    changes = changes_between(
        folded_rows(table, difference.before),
        folded_rows(table, difference.after),
        difference.after.key_columns,
    )
    try:
        for found in changes:
            offsets = pa.array(range(count, count + len(found)), pa.int64())
            count += len(found)
            columns = {name: found[name] for name in found.column_names}
            yield _log_rows(difference, {"op_offset": offsets, **columns}, len(found))
    except DecodeError as error:
        raise difference.unknown(error) from error
    ends = {"op_offset": [OP_INFINITY], "operation": [COMMIT], "commit_timestamp": [taken_at]}
    yield _log_rows(difference, {name: pa.array(each, SCHEMA.field(name).type) for name, each in ends.items()}, 1)


def taken_at(table: DeltaTable, difference: Difference) -> datetime | None:
    """When the new snapshot was taken; of a fold, when its last transaction was committed."""
    after, (tx, op) = difference.after, LogOffset.last_before_real_offsets()
    horizon = "FALSE" if after.snapshot is None or not after.snapshot.is_fold else f"tx_offset = {after.snapshot.lsn:d}"
    condition = f"op_offset = {op:d} AND (tx_offset = {tx:d} AND chunk = {after.attempt:d} OR {horizon})"
    query = f"SELECT MAX(commit_timestamp) AS at FROM rows WHERE {after.condition} AND {condition}"  # noqa: S608  no user's values but literals
    found: datetime | None = query_rows(table, query)["at"][0].as_py()
    return found


def _log_rows(difference: Difference, columns: dict[str, pa.Array], count: int) -> pa.Table:
    same = difference.same
    filled = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.repeat(pa.scalar(same.get(field.name), field.type), count)
        for field in SCHEMA
    ]
    return pa.table(filled, schema=SCHEMA)
