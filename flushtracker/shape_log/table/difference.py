"""``Difference``: replaces the changes that a follower can no longer read one by one.

A follower has the rows of some snapshot, plus the transactions up to its position. If another snapshot has replaced
that one, the shape continues from other rows: those of the new snapshot, plus the transactions up to some offset that
it does not contain. The difference of the two is one transaction with the changes by key. Readers compute it from one
version of the log; it is never stored, and a reader that fails computes it again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable

from flushtracker.delta.storage import query_rows
from flushtracker.errors import DecodeError, PositionError
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.table.columns import SCHEMA, filled_rows
from flushtracker.shape_log.table.difference_rows import changes_between
from flushtracker.shape_log.table.folded_shape import folded_rows
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between ``before``, the state of a follower at ``position``, and ``after``; both in one version.

    The ``tx_offset`` of its rows is below that of every transaction to read next, and above the position's if that is
    of the same source. Any transaction with the same offset is contained in the difference.
    """

    position: Position
    before: FoundShape
    after: FoundShape
    tx_offset: int

    @property
    def same(self) -> dict[str, object]:
        """The columns that are the same in all of its rows. The xid is 0, because it is not a transaction of the
        server.
        """
        return {
            "source": self.after.source,
            "shape_id": self.after.shape_id,
            "tx_offset": self.tx_offset,
            "xid": 0,
            "chunk": self.after.attempt,
        }

    def unknown(self, error: DecodeError) -> PositionError:
        """The error for a follower whose rows, or their successors, cannot be determined."""
        return PositionError(
            f"position {self.position}: what {self.after.name} had there, or has since, cannot be folded ({error}); "
            "read the shape again from its beginning"
        )


def difference_rows(table: DeltaTable, difference: Difference, taken_at: datetime | None) -> Iterator[pa.Table]:
    """The rows of the difference as log rows, in order; the last one, perhaps the only one, is a ``commit`` row.

    The ``commit`` row has the time ``taken_at``. Everything is read before the first rows are returned. Raises
    ``PositionError`` if one of the two cannot be folded; ``SinkError``, ``DeltaError`` or ``OSError`` if the table
    cannot be read.
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
            yield filled_rows({"op_offset": offsets, **columns}, difference.same, len(found))
    except DecodeError as error:
        raise difference.unknown(error) from error
    ends = {"op_offset": [OP_INFINITY], "operation": [COMMIT], "commit_timestamp": [taken_at]}
    yield filled_rows(
        {name: pa.array(each, SCHEMA.field(name).type) for name, each in ends.items()}, difference.same, 1
    )


def taken_at(table: DeltaTable, difference: Difference) -> datetime | None:
    """When the new snapshot was taken; for a fold, when its last transaction was committed."""
    after, (tx, op) = difference.after, LogOffset.last_before_real_offsets()
    horizon = "FALSE" if after.snapshot is None or not after.snapshot.is_fold else f"tx_offset = {after.snapshot.lsn:d}"
    condition = f"op_offset = {op:d} AND (tx_offset = {tx:d} AND chunk = {after.attempt:d} OR {horizon})"
    query = f"SELECT MAX(commit_timestamp) AS at FROM rows WHERE {after.condition} AND {condition}"  # noqa: S608  no user's values but literals
    found: datetime | None = query_rows(table, query)["at"][0].as_py()
    return found
