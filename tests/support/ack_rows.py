"""An ack table in memory, with the contract of :class:`flushtracker.delta.ack_table.AckTable`.

``AckRows`` is what is stored, and ``AckRows.open`` is one driver's table: it appends only acks greater than the
source's last one, and only while no other driver has fenced it.
"""

from dataclasses import dataclass, field

from flushtracker.delta.ack_table import AckRow
from flushtracker.errors import SinkError


@dataclass(slots=True)
class AckRows:
    """The stored rows, the last ack of each source, and the token of the driver that fenced last."""

    appended: list[AckRow] = field(default_factory=list)
    last_acks: dict[str, int] = field(default_factory=dict)
    fencing_token: int = 0

    @property
    def rows(self) -> list[tuple[str, int]]:
        """The rows as (source, ack LSN)."""
        return [(row.source, row.ack_lsn) for row in self.appended]

    def acks(self, source: str) -> list[int]:
        return [row.ack_lsn for row in self.appended if row.source == source]

    def open(self) -> "OpenAckRows":
        return OpenAckRows(self)


class OpenAckRows:
    """The methods of ``AckTable`` that a driver calls."""

    def __init__(self, stored: AckRows) -> None:
        self._stored = stored
        self._token = 0

    def fence_others(self) -> None:
        if self._token:
            self.require_not_fenced()
            return
        self._stored.fencing_token += 1
        self._token = self._stored.fencing_token

    def require_not_fenced(self) -> None:
        if self._stored.fencing_token != self._token:
            raise SinkError("this driver has been fenced")

    def last_ack(self, source: str) -> int | None:
        return self._stored.last_acks.get(source)

    def last_acks(self) -> dict[str, int]:
        return dict(self._stored.last_acks)

    def append(self, row: AckRow) -> bool:
        self.require_not_fenced()
        last_ack = self.last_ack(row.source)
        if last_ack is not None and row.ack_lsn <= last_ack:
            return False
        self._stored.appended.append(row)
        self._stored.last_acks[row.source] = row.ack_lsn
        return True
