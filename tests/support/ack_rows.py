"""Ack tables of simulated jobs: one in memory, with the contract of ``AckTable``, and the real one.

``AckRows`` is what is stored, and ``AckRows.open`` is one driver's table: it appends only acks greater than the
source's last one, and only while no other driver has fenced it. ``DeltaAckRows`` is the same on a Delta table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.tracking.acks.ack_table import AckRow, AckTable


class StoredAcks(Protocol):
    """The rows as (source, ack LSN), and the last ack of each source."""

    @property
    def rows(self) -> Sequence[tuple[str, int]]: ...

    @property
    def last_acks(self) -> Mapping[str, int]: ...

    def open(self) -> "AckTable | OpenAckRows":
        """The table of a driver that starts."""


def acks_of(stored: StoredAcks, source: str) -> list[int]:
    """The acks of a source, in the order in which they were appended."""
    return [ack_lsn for row_source, ack_lsn in stored.rows if row_source == source]


@dataclass(slots=True)
class AckRows:
    """The stored rows as (source, ack LSN), each source's last ack, and the token of the driver that fenced last."""

    rows: list[tuple[str, int]] = field(default_factory=list)
    acks_by_source: dict[str, int] = field(default_factory=dict)
    fencing_token: int = 0

    @property
    def last_acks(self) -> Mapping[str, int]:
        return self.acks_by_source

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

    def append(self, *rows: AckRow) -> int:
        self.require_not_fenced()
        advanced = [row for row in rows if row.ack_lsn > self._stored.last_acks.get(row.source, -1)]
        self._stored.rows += [(row.source, row.ack_lsn) for row in advanced]
        self._stored.acks_by_source |= {row.source: row.ack_lsn for row in advanced}
        return len(advanced)


class ObservedTable:
    """A driver's table that calls ``on_call`` before and after each of its methods."""

    def __init__(self, table: object, on_call: Callable[[], None]) -> None:
        self._table = table
        self._on_call = on_call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._table, name)

        def call(*arguments: Any) -> Any:
            self._on_call()
            result = method(*arguments)
            self._on_call()
            return result

        return call


class DeltaAckRows:
    """The ack table at ``uri``."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._reader = AckTable(uri)

    @property
    def rows(self) -> list[tuple[str, int]]:
        self._reader._owned.refresh()
        rows = table_rows(self._reader._table, ["source", "ack_lsn"]).to_pylist()
        return [(row["source"], row["ack_lsn"]) for row in rows]

    @property
    def last_acks(self) -> dict[str, int]:
        return self._reader.last_acks()

    def open(self) -> AckTable:
        return AckTable(self._uri)
