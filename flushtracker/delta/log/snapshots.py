"""The snapshots in a shape log: the last attempt of each shape."""

from collections.abc import Mapping
from typing import Final

from deltalake.exceptions import DeltaError

from flushtracker.delta.log.files import ShapeKey
from flushtracker.delta.log.table import open_shape_log, unreadable
from flushtracker.delta.storage import literal, query_rows
from flushtracker.shape_log.shape_snapshot import SNAPSHOT
from flushtracker.wal.log_offset import LogOffset

_TX, _OP = LogOffset.last_before_real_offsets()
_IS_END: Final = f"tx_offset = {_TX:d} AND op_offset = {_OP:d} AND operation = {literal(SNAPSHOT)}"
"""The condition for the row that ends a snapshot."""
_ATTEMPTS: Final = f"SELECT source, shape_id, MAX(chunk) AS attempt FROM rows WHERE {_IS_END} GROUP BY source, shape_id"  # noqa: S608  no user's values


def snapshot_attempts(log: str, storage_options: Mapping[str, str]) -> dict[ShapeKey, int]:
    """The last attempt of each shape that has a snapshot; raises ``SinkError``."""
    try:
        found = query_rows(open_shape_log(log, storage_options), _ATTEMPTS).to_pylist()
    except (DeltaError, OSError) as error:
        raise unreadable(log, error) from error
    return {(row["source"], row["shape_id"]): row["attempt"] for row in found}
