"""The snapshots in a shape log: the last attempt of each shape, and the snapshots that a merge has to know."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from flushtracker.delta.log.files import LogFile, ShapeKey
from flushtracker.delta.log.table import open_shape_log, unreadable
from flushtracker.delta.storage import literal, query_rows
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeSnapshot
from flushtracker.wal.log_offset import LogOffset

_TX, _OP = LogOffset.last_before_real_offsets()
_IS_END: Final = f"tx_offset = {_TX:d} AND op_offset = {_OP:d} AND operation = {literal(SNAPSHOT)}"
"""The condition for the row that ends a snapshot."""
_ATTEMPTS: Final = f"SELECT source, shape_id, MAX(chunk) AS attempt FROM rows WHERE {_IS_END} GROUP BY source, shape_id"  # noqa: S608  no user's values
_ENDS: Final = f"SELECT source, shape_id, chunk, value FROM rows WHERE {_IS_END}"  # noqa: S608  no user's values


def snapshot_attempts(log: str, storage_options: Mapping[str, str]) -> dict[ShapeKey, int]:
    """The last attempt of each shape that has a snapshot; raises ``SinkError``."""
    try:
        found = query_rows(open_shape_log(log, storage_options), _ATTEMPTS).to_pylist()
    except (DeltaError, OSError) as error:
        raise unreadable(log, error) from error
    return {(row["source"], row["shape_id"]): row["attempt"] for row in found}


class CurrentSnapshots:
    """The last snapshot of each shape of a log; reads each file once. Raises ``DeltaError`` or ``OSError``."""

    def __init__(self) -> None:
        self._known = set[str]()
        self._snapshots: dict[ShapeKey, ShapeSnapshot] = {}

    def at(self, table: DeltaTable, files: Sequence[LogFile]) -> Mapping[ShapeKey, ShapeSnapshot]:
        """The snapshots in the version of ``table`` with these ``files``; a malformed one is a ``DecodeError``."""
        new = [file for file in files if file.path not in self._known and file.may_have_snapshot]
        if new:
            for row in query_rows(table, _ENDS + _of_shapes(new)).to_pylist():
                snapshot = ShapeSnapshot.parse(row["chunk"], row["value"])
                before = self._snapshots.get(key := (row["source"], row["shape_id"]))
                if before is None or before.attempt < snapshot.attempt:
                    self._snapshots[key] = snapshot
        self._known = {file.path for file in files}
        return self._snapshots

    def add(self, paths: Iterable[str]) -> None:
        """Do not read these files: all of their rows are from files that are known."""
        self._known.update(paths)


def _of_shapes(files: list[LogFile]) -> str:
    """The condition for the shapes that the files may have, so that files of other shapes are not opened again."""
    first, last = [file.first_id for file in files], [file.last_id for file in files]
    if None in first or None in last:
        return ""
    least, greatest = min(filter(None, first), default=""), max(filter(None, last), default="")
    return f" AND shape_id >= {literal(least)} AND shape_id <= {literal(greatest)}"
