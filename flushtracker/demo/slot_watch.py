"""``SlotWatch``: asks the server and the ack table how things stand."""

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final

from flushtracker.delta.ack_reader import AckReader
from flushtracker.demo.samples import Sample
from flushtracker.postgres.connection import connect, rows
from flushtracker.wal.lsn import parse_lsn
from flushtracker.wal.source_name import base_source

_SOURCE: Final = """
SELECT (SELECT system_identifier FROM pg_control_system())::text, (SELECT timeline_id FROM pg_control_checkpoint())
"""
_POSITIONS: Final = """
SELECT pg_current_wal_insert_lsn()::text, r.write_lsn::text, s.confirmed_flush_lsn::text, s.restart_lsn::text
FROM (VALUES (%s)) AS wanted (slot)
LEFT JOIN pg_replication_slots s ON s.slot_name = wanted.slot
LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
"""


class SlotWatch:
    """A connection to the server, and the ack table at ``acks``, which need not be there yet; close it at the end.

    Each method raises ``PostgresError`` where the server does not answer, ``SinkError`` where the table does not.
    """

    def __init__(self, options: Mapping[str, str], slot: str, acks: str) -> None:
        self._connection = connect({**options, "application_name": "flushtracker_demo"})
        self._slot = slot
        ((system_id, timeline),) = rows(self._connection, _SOURCE)
        self._source = base_source(system_id, timeline, slot)
        self._acks = AckReader(acks)

    def sample(self) -> Sample:
        """How things stand now."""
        # The ack first: what the slot says a moment later can only be further.
        ack = self._acks.last_row(self._source)
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


def _optional_lsn(text: str | None) -> int | None:
    return None if text is None else parse_lsn(text)
