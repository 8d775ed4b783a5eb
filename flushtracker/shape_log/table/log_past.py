"""What a shape's log had before: the questions of those whose rows are not its newest ones."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from flushtracker.delta.storage import literal, query_rows
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.log_table import open_shape_log, unreadable

_IS_COMMIT: Final = f"operation = {literal(COMMIT)}"


def has_changes(table: DeltaTable, shape: FoundShape, after_tx: int, upto_tx: int) -> bool:
    """Whether a transaction between the two is not in the shape's snapshot; raises ``SinkError``."""
    return (
        _last_commit(table, f"{shape.condition} AND {shape.counted(after_tx)} AND tx_offset <= {upto_tx:d}") is not None
    )


def last_committed(log: str, storage_options: Mapping[str, str] | None, shape: FoundShape, by: datetime) -> int | None:
    """The shape's last transaction that the log had at a time, by the storage's clock; ``None`` if it had none.

    Raises ``SinkError``.
    """
    table = open_shape_log(log, storage_options)
    try:
        table.load_as_version(by)
    except (DeltaError, OSError) as error:
        raise unreadable(log, error) from error
    return _last_commit(table, f"{shape.condition} AND {shape.counted()}")


def _last_commit(table: DeltaTable, condition: str) -> int | None:
    query = f"SELECT MAX(tx_offset) AS last FROM rows WHERE {_IS_COMMIT} AND {condition}"  # noqa: S608  literals alone
    try:
        found: int | None = query_rows(table, query)["last"][0].as_py()
    except (DeltaError, OSError) as error:
        raise unreadable(table.table_uri, error) from error
    return found
