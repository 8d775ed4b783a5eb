"""What the demo's view shows of the server, the slot and the tracker at one moment, and how that is queried."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from flushtracker.config.byte_size import bytes_text
from flushtracker.config.duration import seconds_text
from flushtracker.delta.acks.ack_reader import AckReader
from flushtracker.errors import StatusError
from flushtracker.operate.status.job_status_reader import read_job_status
from flushtracker.postgres.connection import connect, rows
from flushtracker.status.job_status import SourceStatus
from flushtracker.wal.lsn import format_lsn, parse_lsn
from flushtracker.wal.source_name import base_source

NOTHING: Final = "–"
UNKNOWN: Final = "unknown"
_STATUS_TIMEOUT_S: Final = 1.0
_BARS: Final = "▁▂▃▄▅▆▇█"

_SOURCE: Final = """
SELECT (SELECT system_identifier FROM pg_control_system())::text, (SELECT timeline_id FROM pg_control_checkpoint())
"""
_POSITIONS: Final = """
SELECT pg_current_wal_insert_lsn()::text, r.write_lsn::text, s.confirmed_flush_lsn::text, s.restart_lsn::text
FROM (VALUES (%s)) AS wanted (slot)
LEFT JOIN pg_replication_slots s ON s.slot_name = wanted.slot
LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """LSNs at the time ``at``; ``None`` for those that do not exist yet.

    Capture has received the WAL up to ``received_lsn``; the slot makes the server retain it from ``restart_lsn`` on.
    ``tracked`` is what the tracker knows of the source, ``None`` if it does not answer or knows nothing yet.
    """

    at: datetime
    written_lsn: int
    received_lsn: int | None
    confirmed_lsn: int | None
    restart_lsn: int | None
    ack_lsn: int | None
    tracked: SourceStatus | None

    @property
    def retained_bytes(self) -> int:
        """How much WAL the slot makes the server retain."""
        return 0 if self.restart_lsn is None else self.written_lsn - self.restart_lsn

    @property
    def blocking(self) -> str:
        """The shape that holds the ack back now, and for how long so far."""
        if self.tracked is None:
            return UNKNOWN
        if not self.tracked.holders:
            return NOTHING
        first = self.tracked.holders[0]
        return f"{first.shape_id} for {seconds_text(max(0.0, self.at.timestamp() - first.since_ms / 1000))}"

    def line(self) -> str:
        """The sample as one line, for output that is not a terminal."""
        return (
            f"written={lsn_text(self.written_lsn)} received={lsn_text(self.received_lsn)} "
            f"acknowledged={lsn_text(self.ack_lsn)} confirmed_flush_lsn={lsn_text(self.confirmed_lsn)} "
            f"retained={bytes_text(self.retained_bytes)} blocking_shape={self.blocking}"
        )


class SlotWatch:
    """A connection to the server, the ack table at ``acks``, which need not exist yet, and the tracker's status.

    Close it at the end. Each method raises ``PostgresError`` if the server does not answer, ``SinkError`` if the table
    cannot be read; a tracker that does not answer is no error.
    """

    def __init__(self, options: Mapping[str, str], slot: str, acks: str, status_url: str) -> None:
        self._connection = connect({**options, "application_name": "flushtracker_demo"})
        self._slot = slot
        ((system_id, timeline),) = rows(self._connection, _SOURCE)
        self._source = base_source(system_id, timeline, slot)
        self._acks = AckReader(acks)
        self._status_url = status_url

    def sample(self) -> Sample:
        """The current sample."""
        # The ack first: the server's LSNs, read a moment later, can only be further.
        ack_lsn = self._acks.last_ack(self._source)
        ((written, received, confirmed, restart),) = rows(self._connection, _POSITIONS, (self._slot,))
        return Sample(
            at=datetime.now(timezone.utc),
            written_lsn=parse_lsn(written),
            received_lsn=_optional_lsn(received),
            confirmed_lsn=_optional_lsn(confirmed),
            restart_lsn=_optional_lsn(restart),
            ack_lsn=ack_lsn,
            tracked=self._tracked(),
        )

    def _tracked(self) -> SourceStatus | None:
        try:
            status = read_job_status(self._status_url, _STATUS_TIMEOUT_S)
        except StatusError:  # Seconds after its start.
            return None
        sources = () if status is None else status.sources
        return next((source for source in sources if source.source == self._source), None)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _optional_lsn(text: str | None) -> int | None:
    return None if text is None else parse_lsn(text)


def lsn_text(lsn: int | None) -> str:
    """The LSN as PostgreSQL writes it, or a dash."""
    return NOTHING if lsn is None else format_lsn(lsn)


def bars(values: list[int]) -> str:
    """One character for each value, its height in proportion to the greatest.

    >>> bars([0, 1, 4, 8, 2])
    '▁▂▅█▃'
    """
    top = max(values, default=0) or 1
    return "".join(_BARS[round(max(0, value) / top * (len(_BARS) - 1))] for value in values)
