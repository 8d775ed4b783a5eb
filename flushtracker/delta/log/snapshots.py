"""The snapshots in a shape log, folds included, and the number that orders their commits.

Each commit that adds a snapshot or folds raises the version of one app transaction, :data:`REPLACED_APP_ID`, by one
from what it was when the last snapshot of each of its shapes was read. Delta refuses the second of two such commits,
which then reads the snapshots again. So each is made knowing the one before it, though appends go on meanwhile.
"""

from collections.abc import Iterable, Mapping, Set
from datetime import datetime
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from flushtracker.delta.log.table import SCHEMA, open_shape_log, unreadable
from flushtracker.delta.storage import literal, query_rows
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeKey, ShapeSnapshot
from flushtracker.wal.log_offset import LogOffset

_TX, _OP = LogOffset.last_before_real_offsets()
_IS_END: Final = f"tx_offset = {_TX:d} AND op_offset = {_OP:d} AND operation = {literal(SNAPSHOT)}"
"""The condition for the row that ends a snapshot."""
_ENDS: Final = f"SELECT source, shape_id, chunk, value FROM rows WHERE {_IS_END}"  # noqa: S608  no user's values
_ATTEMPTS: Final = f"SELECT source, shape_id, MAX(chunk) AS attempt FROM rows WHERE {_IS_END} GROUP BY source, shape_id"  # noqa: S608  no user's values


REPLACED_APP_ID: Final = "flushtracker: snapshots"
"""The app transaction whose version counts the commits of snapshots and folds. Persisted, so it cannot change."""


def last_snapshots(table: DeltaTable, condition: str = "TRUE") -> dict[ShapeKey, ShapeSnapshot]:
    """The last snapshot of each shape in the open version of the table, of the rows for which ``condition`` is true.

    Raises ``DeltaError``, ``OSError``, or ``DecodeError`` for a malformed snapshot.
    """
    found: dict[ShapeKey, ShapeSnapshot] = {}
    for row in query_rows(table, f"{_ENDS} AND ({condition})").to_pylist():
        snapshot, key = ShapeSnapshot.parse(row["chunk"], row["value"]), (row["source"], row["shape_id"])
        if key not in found or found[key].attempt < snapshot.attempt:
            found[key] = snapshot
    return found


def snapshot_attempts(log: str, storage_options: Mapping[str, str]) -> dict[ShapeKey, int]:
    """The last attempt of each shape that has a snapshot; raises ``SinkError``."""
    return _attempts(open_shape_log(log, storage_options), log)


def _attempts(table: DeltaTable, log: str) -> dict[ShapeKey, int]:
    try:
        found = query_rows(table, _ATTEMPTS).to_pylist()
    except (DeltaError, OSError) as error:
        raise unreadable(log, error) from error
    return {(row["source"], row["shape_id"]): row["attempt"] for row in found}


class SnapshotsTaken:
    """The shapes that had a snapshot at the last :meth:`update`; not thread-safe."""

    def __init__(self, log: str, storage_options: Mapping[str, str]) -> None:
        """Open the log, without a query; raises ``SinkError``."""
        self.keys: Set[ShapeKey] = frozenset()
        self._log = log
        self._table = open_shape_log(log, storage_options)
        self._version: int | None = None

    def update(self) -> bool:
        """Query the log if snapshots or folds were committed since, and return whether; raises ``SinkError``."""
        try:
            self._table.update_incremental()
            version = self._table.transaction_version(REPLACED_APP_ID)
        except (DeltaError, OSError) as error:
            raise unreadable(self._log, error) from error
        if version == self._version:
            return False
        self.keys = _attempts(self._table, self._log).keys()
        self._version = version
        return True


def end_rows(keys: Iterable[ShapeKey], snapshot: ShapeSnapshot, taken_at: datetime) -> pa.Table:
    """The rows that end the snapshots of these shapes."""
    end = {
        "tx_offset": _TX,
        "op_offset": _OP,
        "operation": SNAPSHOT,
        "value": snapshot.to_json(),
        "xid": 0,
        "commit_timestamp": taken_at,
        "chunk": snapshot.attempt,
    }
    rows = [{"source": source, "shape_id": shape_id, **end} for source, shape_id in sorted(keys)]
    return pa.Table.from_pylist(rows, SCHEMA)
