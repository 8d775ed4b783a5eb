"""What the demo's view shows of the server, the slot and the acks at one moment, and how that is queried."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from flushtracker.delta.ack_reader import Ack, AckReader
from flushtracker.postgres.connection import connect, rows
from flushtracker.report.figures import bytes_text, seconds_text
from flushtracker.wal.lsn import format_lsn, parse_lsn
from flushtracker.wal.source_name import base_source

NOTHING: Final = "–"
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
    """

    at: datetime
    written_lsn: int
    received_lsn: int | None
    confirmed_lsn: int | None
    restart_lsn: int | None
    ack: Ack | None

    @property
    def retained_bytes(self) -> int:
        """How much WAL the slot makes the server retain."""
        return 0 if self.restart_lsn is None else self.written_lsn - self.restart_lsn

    @property
    def ack_lsn(self) -> int | None:
        return None if self.ack is None else self.ack.ack_lsn

    @property
    def blocking(self) -> str:
        """The shape that holds the ack back, and for how long so far."""
        if self.ack is None or self.ack.blocking_shape is None:
            return NOTHING
        if self.ack.blocking_since is None:
            return self.ack.blocking_shape
        seconds = max(0.0, (self.at - self.ack.blocking_since).total_seconds())
        return f"{self.ack.blocking_shape} for {seconds_text(seconds)}"

    def line(self) -> str:
        """The sample as one line, for output that is not a terminal."""
        return (
            f"written={lsn_text(self.written_lsn)} received={lsn_text(self.received_lsn)} "
            f"acknowledged={lsn_text(self.ack_lsn)} confirmed_flush_lsn={lsn_text(self.confirmed_lsn)} "
            f"retained={bytes_text(self.retained_bytes)} blocking_shape={self.blocking}"
        )


class SlotWatch:
    """A connection to the server, and the ack table at ``acks``, which need not exist yet; close it at the end.

    Each method raises ``PostgresError`` if the server does not answer, ``SinkError`` if the table cannot be read.
    """

    def __init__(self, options: Mapping[str, str], slot: str, acks: str) -> None:
        self._connection = connect({**options, "application_name": "flushtracker_demo"})
        self._slot = slot
        ((system_id, timeline),) = rows(self._connection, _SOURCE)
        self._source = base_source(system_id, timeline, slot)
        self._acks = AckReader(acks)

    def sample(self) -> Sample:
        """The current sample."""
        # The ack first: the server's LSNs, read a moment later, can only be further.
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
