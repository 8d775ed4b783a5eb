"""``AckReader``: the last ack of a source, read from the ack table's log alone; it never creates or writes."""

from collections.abc import Mapping

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from flushtracker.delta.ack_table import storage_reason
from flushtracker.errors import SinkError


class AckReader:
    """The ack table at ``uri``, which need not be there yet. For one thread at a time."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._uri = uri
        self._options = dict(storage_options or {})
        self._table: DeltaTable | None = None

    def last_ack(self, source: str) -> int | None:
        """The last ack of a source as the table has it now, ``None`` without one; raises ``SinkError``."""
        try:
            if self._table is None:
                self._table = DeltaTable(self._uri, storage_options=self._options)
            else:
                self._table.update_incremental()
            return self._table.transaction_version(source)
        except TableNotFoundError:
            self._table = None
            return None
        except (DeltaError, OSError) as error:
            self._table = None
            raise SinkError(f"ack table {self._uri} cannot be read: {storage_reason(error)}") from error
