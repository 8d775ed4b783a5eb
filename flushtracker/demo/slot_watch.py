"""``SlotWatch``: asks the server and the ack table how things stand."""

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from flushtracker.capture.source_name import base_source
from flushtracker.delta.ack_table import storage_reason
from flushtracker.delta.table_rows import table_rows
from flushtracker.demo.samples import LastAck, Sample
from flushtracker.errors import SinkError
from flushtracker.lsn import parse_lsn
from flushtracker.postgres.connection import connect, rows

_SOURCE: Final = """
SELECT (SELECT system_identifier FROM pg_control_system())::text, (SELECT timeline_id FROM pg_control_checkpoint())
"""
_POSITIONS: Final = """
SELECT pg_current_wal_insert_lsn()::text, r.write_lsn::text, s.confirmed_flush_lsn::text, s.restart_lsn::text
FROM (VALUES (%s)) AS wanted (slot)
LEFT JOIN pg_replication_slots s ON s.slot_name = wanted.slot
LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
"""
_COLUMNS: Final = ("ack_lsn", "pending_shapes", "blocking_shape", "blocking_since")


class SlotWatch:
    """A connection to the server, and the ack table at ``acks``, which need not be there yet; close it at the end.

    Each method raises ``PostgresError`` where the server does not answer, ``SinkError`` where the table does not.
    """

    def __init__(self, options: Mapping[str, str], slot: str, acks: str) -> None:
        self._connection = connect({**options, "application_name": "flushtracker_demo"})
        self._slot = slot
        ((system_id, timeline),) = rows(self._connection, _SOURCE)
        self._source = base_source(system_id, timeline, slot)
        self._acks = acks
        self._table: DeltaTable | None = None
        self._last_ack: LastAck | None = None

    def sample(self) -> Sample:
        """How things stand now."""
        # The ack first: what the slot says a moment later can only be further.
        ack = self._ack()
        ((written, received, confirmed, restart),) = rows(self._connection, _POSITIONS, (self._slot,))
        return Sample(
            at=datetime.now(timezone.utc),
            written_lsn=parse_lsn(written),
            received_lsn=_optional_lsn(received),
            confirmed_lsn=_optional_lsn(confirmed),
            restart_lsn=_optional_lsn(restart),
            ack=ack,
        )

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _ack(self) -> LastAck | None:
        """The last row; the table's log says whether there is a new one, and statistics which file has it."""
        try:
            if self._table is None:
                self._table = DeltaTable(self._acks)
            else:
                self._table.update_incremental()
            ack_lsn = self._table.transaction_version(self._source)
            if ack_lsn is not None and (self._last_ack is None or ack_lsn > self._last_ack.ack_lsn):
                for row in table_rows(self._table, ("source", *_COLUMNS), f"ack_lsn = {ack_lsn:d}").to_pylist():
                    if row.pop("source") == self._source:
                        self._last_ack = LastAck(**row)
        except TableNotFoundError:
            self._table = None
        except (DeltaError, OSError) as error:
            raise SinkError(f"ack table {self._acks} cannot be read: {storage_reason(error)}") from error
        return self._last_ack


def _optional_lsn(text: str | None) -> int | None:
    return None if text is None else parse_lsn(text)
