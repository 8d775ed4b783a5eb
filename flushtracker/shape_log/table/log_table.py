"""The shape log: one Delta table with the logs of all shapes of all sources.

A row is one item of a shape's log. A ``commit`` row ends each transaction of a shape, at ``(tx, ∞)``, in the same
append as the transaction's last items. A transaction may be written in several appends, so readers take the greatest
``commit`` row of a shape as their bound. Each (source, shape_id, tx_offset, op_offset) occurs once.
"""

from collections.abc import Mapping
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from flushtracker.delta.row_files import RowFiles
from flushtracker.delta.storage import storage_reason
from flushtracker.delta.table_folder import TableFolder
from flushtracker.delta.table_version import PROPERTY, VERSION, require_ours
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.columns import SCHEMA, SEARCHED

CONFIGURATION: Final = {
    PROPERTY: str(VERSION),
    "delta.checkpointInterval": "100",
    # Reading one version may take this long.
    "delta.logRetentionDuration": "interval 6 hours",
    "delta.deletedFileRetentionDuration": "interval 6 hours",
    "delta.dataSkippingStatsColumns": ",".join(SEARCHED),
}


def create_shape_log(uri: str, storage_options: Mapping[str, str] | None = None) -> DeltaTable:
    """Open the shape log at ``uri``, or create it; raises ``SinkError`` if something else is there."""
    try:
        table = shape_log_folder(uri, storage_options).open_or_create(SCHEMA, CONFIGURATION)
    except (DeltaError, OSError) as error:
        raise SinkError(f"shape log {uri} cannot be opened or created: {storage_reason(error)}") from error
    _require_shape_log(table, uri)
    return table


def shape_log_folder(uri: str, storage_options: Mapping[str, str] | None = None) -> TableFolder:
    return TableFolder("shape log", uri, storage_options)


def open_shape_log(uri: str, storage_options: Mapping[str, str] | None = None) -> DeltaTable:
    """Open the shape log at ``uri``; raises ``SinkError`` if there is none."""
    try:
        table = DeltaTable(uri, storage_options=dict(storage_options or {}))
    except TableNotFoundError as error:
        raise SinkError(f"there is no shape log at {uri}; name the storage of `flushtracker write`") from error
    except (DeltaError, OSError) as error:
        raise unreadable(uri, error) from error
    _require_shape_log(table, uri)
    return table


def row_files(table: DeltaTable, storage_options: Mapping[str, str]) -> RowFiles:
    """Writes files of rows to append."""
    return RowFiles.of("shape log", table, storage_options, SCHEMA, SEARCHED)


def unreadable(uri: str, error: Exception) -> SinkError:
    return SinkError(f"shape log {uri} cannot be read: {storage_reason(error)}")


def unwritable(uri: str, error: Exception) -> SinkError:
    return SinkError(f"shape log {uri} cannot be written: {storage_reason(error)}")


def _require_shape_log(table: DeltaTable, uri: str) -> None:
    require_ours(table, "shape log", uri, SCHEMA.names, "name the storage of `flushtracker write`")
