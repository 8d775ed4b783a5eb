"""The snapshots in a shape log, folds included, and the number that orders their commits.

Each commit that adds a snapshot or fold increments the version of one app transaction, :data:`REPLACED_APP_ID`, as it
was when the last snapshots of its shapes were read. Delta refuses the second of two concurrent commits, which then
reads the snapshots again. So each is based on the previous one, although appends continue meanwhile.
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from operator import itemgetter
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from flushtracker.delta.storage import literal, query_rows, refresh
from flushtracker.errors import DecodeError
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeKey, ShapeSnapshot
from flushtracker.shape_log.table.columns import SCHEMA
from flushtracker.shape_log.table.log_table import open_shape_log, unreadable
from flushtracker.wal.log_offset import LogOffset

logger = logging.getLogger(__name__)

_TX, _OP = LogOffset.last_before_real_offsets()
_IS_END: Final = f"tx_offset = {_TX:d} AND op_offset = {_OP:d} AND operation = {literal(SNAPSHOT)}"
"""The condition for rows that end a snapshot."""
_IS_LATER: Final = "value LIKE '%\"incarnation\"%'"
"""The condition for snapshots and marks of later incarnations."""
_IS_ONE: Final = "value LIKE '%\"xmin\"%'"
"""The condition for snapshots that are not malformed altogether."""
_ENDS: Final = f"SELECT source, shape_id, chunk, value FROM rows WHERE {_IS_END}"  # noqa: S608  no user's values
_OF_LATER: Final = f"{_ENDS} AND {_IS_LATER}"
_OF_THE_FIRST: Final = f"SELECT DISTINCT source, shape_id FROM rows WHERE {_IS_END} AND NOT {_IS_LATER} AND {_IS_ONE}"  # noqa: S608  no user's values
_LAST_ATTEMPT: Final = f"SELECT MAX(chunk) AS attempt FROM rows WHERE {_IS_END}"  # noqa: S608  no user's values

REPLACED_APP_ID: Final = "flushtracker: snapshots"
"""The app transaction whose version counts the commits of snapshots and folds. Persisted, so it cannot change."""


class LastSnapshots(dict[ShapeKey, ShapeSnapshot]):
    """The last snapshots of shapes; those of the ``malformed`` ones cannot be read, and are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.malformed: set[ShapeKey] = set()


def last_snapshots(table: DeltaTable, condition: str = "TRUE") -> LastSnapshots:
    """The last snapshot of each shape in the open version of the table, of the rows for which ``condition`` is true.

    Raises ``DeltaError`` or ``OSError``.
    """
    rows: dict[ShapeKey, tuple[int, str | None]] = {}
    for row in query_rows(table, f"{_ENDS} AND ({condition})").to_pylist():
        key, attempt = (row["source"], row["shape_id"]), -1 if row["chunk"] is None else int(row["chunk"])
        if key not in rows or rows[key][0] < attempt:
            rows[key] = attempt, row["value"]
    found = LastSnapshots()
    for key, (attempt, value) in rows.items():
        snapshot = _parsed(key, attempt, value)
        if snapshot is None:
            found.malformed.add(key)
        else:
            found[key] = snapshot
    return found


def _parsed(key: ShapeKey, attempt: int, value: str | None) -> ShapeSnapshot | None:
    """A snapshot; ``None``, which is logged, if it is malformed: one shape's row keeps no other shape waiting."""
    try:
        return ShapeSnapshot.parse(attempt, value)
    except DecodeError as error:
        logger.warning("snapshot malformed, take another one source=%s shape_id=%s reason=%s", *key, error)
        return None


def last_attempt(log: str, storage_options: Mapping[str, str]) -> int:
    """The greatest attempt of any shape, including marks; 0 if there is none; raises ``SinkError``."""
    try:
        (found,) = query_rows(open_shape_log(log, storage_options), _LAST_ATTEMPT).to_pylist()
    except (DeltaError, OSError) as error:
        raise unreadable(log, error) from error
    return int(found["attempt"] or 0)


def snapshot_incarnations(log: str, storage_options: Mapping[str, str]) -> dict[ShapeKey, int]:
    """The incarnation of the last snapshot of each shape that has one; raises ``SinkError``."""
    return _incarnations(open_shape_log(log, storage_options), log)


def _incarnations(table: DeltaTable, log: str) -> dict[ShapeKey, int]:
    try:
        first, later = query_rows(table, _OF_THE_FIRST).to_pylist(), query_rows(table, _OF_LATER).to_pylist()
    except (DeltaError, OSError) as error:
        raise unreadable(log, error) from error
    found = {(row["source"], row["shape_id"]): 1 for row in first}
    for row in later:
        key = row["source"], row["shape_id"]
        snapshot = _parsed(key, row["chunk"], row["value"])
        if snapshot is not None and not snapshot.is_mark:
            found[key] = max(snapshot.incarnation, found.get(key, 1))
    return found


class SnapshotsTaken:
    """The ``incarnations`` of the snapshots as of the last :meth:`update`; not thread-safe."""

    def __init__(self, log: str, storage_options: Mapping[str, str]) -> None:
        """Open the log, without a query; raises ``SinkError``."""
        self.incarnations: Mapping[ShapeKey, int] = {}
        self._log = log
        self._table = open_shape_log(log, storage_options)
        self._version: int | None = None

    def update(self) -> bool:
        """Query the log if snapshots or folds were committed since; return whether that was so.

        Raises ``SinkError``.
        """
        try:
            refresh(self._table)
            version = self._table.transaction_version(REPLACED_APP_ID)
        except (DeltaError, OSError) as error:
            raise unreadable(self._log, error) from error
        if version == self._version:
            return False
        self.incarnations = _incarnations(self._table, self._log)
        self._version = version
        return True


def end_rows(ends: Mapping[ShapeKey, ShapeSnapshot], taken_at: datetime) -> pa.Table:
    same = {"tx_offset": _TX, "op_offset": _OP, "operation": SNAPSHOT, "xid": 0, "commit_timestamp": taken_at}
    rows = [
        {"source": source, "shape_id": shape_id, "value": snapshot.to_json(), "chunk": snapshot.attempt, **same}
        for (source, shape_id), snapshot in sorted(ends.items(), key=itemgetter(0))
    ]
    return pa.Table.from_pylist(rows, SCHEMA)
