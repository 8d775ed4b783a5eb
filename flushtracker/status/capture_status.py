"""``CaptureStatus``: what capture reports about itself and its slot, the document of its ``/status.json``.

LSNs are text in JSON and numbers here, ``None`` if there is none yet. Times are milliseconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flushtracker.status.json_document import lsn_from_json, lsn_to_json

CAPTURE: Final = "capture"
"""The ``program`` of the document."""


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The slot as PostgreSQL showed it at ``at_ms``, from ``pg_replication_slots``.

    ``retained_bytes`` is the WAL that it keeps; ``safe_wal_bytes`` how much more may be written before it is lost,
    ``None`` where the server sets no limit. ``failover_lacks`` says what it lacks to survive a failover, ``None`` where
    none is prepared.
    """

    name: str
    at_ms: int
    is_active: bool
    wal_status: str | None
    written_lsn: int
    confirmed_lsn: int | None
    retained_bytes: int
    safe_wal_bytes: int | None
    failover_lacks: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "at_ms": self.at_ms,
            "is_active": self.is_active,
            "wal_status": self.wal_status,
            "written_lsn": lsn_to_json(self.written_lsn),
            "confirmed_lsn": lsn_to_json(self.confirmed_lsn),
            "retained_bytes": self.retained_bytes,
            "safe_wal_bytes": self.safe_wal_bytes,
            "failover_lacks": None if self.failover_lacks is None else list(self.failover_lacks),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "SlotStatus":
        return cls(
            fields["name"],
            fields["at_ms"],
            fields["is_active"],
            fields["wal_status"],
            lsn_from_json(fields["written_lsn"]) or 0,
            lsn_from_json(fields["confirmed_lsn"]),
            fields["retained_bytes"],
            fields["safe_wal_bytes"],
            None if fields.get("failover_lacks") is None else tuple(fields["failover_lacks"]),
        )


@dataclass(frozen=True, slots=True)
class Eviction:
    """A shape that capture has evicted, and why."""

    shape_id: str
    at_ms: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"shape": self.shape_id, "at_ms": self.at_ms, "reason": self.reason}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Eviction":
        return cls(fields["shape"], fields["at_ms"], fields["reason"])


@dataclass(frozen=True, slots=True)
class WaitingShapes:
    """Shapes on one table that are defined and not added yet, at most ten of ``count`` by id.

    ``statement`` is what somebody has to run, ``None`` if they wait for something else.
    """

    table: str
    shape_ids: tuple[str, ...]
    count: int
    reason: str
    statement: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "shapes": list(self.shape_ids),
            "count": self.count,
            "reason": self.reason,
            "statement": self.statement,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "WaitingShapes":
        return cls(fields["table"], tuple(fields["shapes"]), fields["count"], fields["reason"], fields["statement"])


@dataclass(frozen=True, slots=True)
class RefusedShape:
    """Something of the shapes file that capture has not taken, and why.

    ``shape_id`` is ``None`` if that cannot be read, or if the whole file is refused.
    """

    shape_id: str | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"shape": self.shape_id, "reason": self.reason}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "RefusedShape":
        return cls(fields["shape"], fields["reason"])


@dataclass(frozen=True, slots=True)
class EndedShape:
    """A shape that is still defined, and that capture has ended: why, and where. ``flushtracker resync`` begins it.

    ``evicted_at_ms``: when the policy of ``evict`` ended it; ``None`` if capture could not keep it correct.
    """

    shape_id: str
    incarnation: int
    removed_lsn: int
    reason: str
    evicted_at_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": self.shape_id,
            "incarnation": self.incarnation,
            "removed_lsn": lsn_to_json(self.removed_lsn),
            "reason": self.reason,
            "evicted_at_ms": self.evicted_at_ms,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "EndedShape":
        lsn = lsn_from_json(fields["removed_lsn"]) or 0
        return cls(fields["shape"], fields["incarnation"], lsn, fields["reason"], fields["evicted_at_ms"])


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """Capture at ``at_ms``. The sums count from its start; ``slot`` is ``None`` before it was read.

    ``acks_read_at_ms`` is when the ack table was last read without an error. A change that is resent counts again.
    ``evictions`` has the source's last hundred, also those before the start. ``waiting`` are the shapes that are not
    added yet; ``shapes_refused`` counts the entries of the shapes file that were not taken, and ``refused`` has the
    first of them. ``ended`` are at most a hundred shapes that are still defined, but have ended.
    """

    at_ms: int
    started_at_ms: int
    source: str | None
    is_connected: bool
    slot: SlotStatus | None = None
    received_lsn: int | None = None
    published_lsn: int | None = None
    acknowledged_lsn: int | None = None
    confirmed_lsn: int | None = None
    acks_read_at_ms: int | None = None
    shapes: int = 0
    changes_matched: int = 0
    changes_unmatched: int = 0
    publish_queue_bytes: int = 0
    reconnects: int = 0
    evicted: int = 0
    evictions: tuple[Eviction, ...] = ()
    waiting: tuple[WaitingShapes, ...] = ()
    shapes_refused: int = 0
    refused: tuple[RefusedShape, ...] = ()
    ended: tuple[EndedShape, ...] = ()

    @property
    def not_ready_because(self) -> str | None:
        """Why the program does not do its work now; ``None`` if it is ready."""
        if not self.is_connected:
            return "there is no replication connection to PostgreSQL, or the shapes have not been read yet"
        return "the slot has not been read yet" if self.slot is None else None

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "program": CAPTURE,
            "at_ms": self.at_ms,
            "started_at_ms": self.started_at_ms,
            "source": self.source,
            "is_connected": self.is_connected,
            "slot": None if self.slot is None else self.slot.to_json(),
            "received_lsn": lsn_to_json(self.received_lsn),
            "published_lsn": lsn_to_json(self.published_lsn),
            "acknowledged_lsn": lsn_to_json(self.acknowledged_lsn),
            "confirmed_lsn": lsn_to_json(self.confirmed_lsn),
            "acks_read_at_ms": self.acks_read_at_ms,
            "shapes": self.shapes,
            "changes_matched": self.changes_matched,
            "changes_unmatched": self.changes_unmatched,
            "publish_queue_bytes": self.publish_queue_bytes,
            "reconnects": self.reconnects,
            "evicted": self.evicted,
            "evictions": [eviction.to_json() for eviction in self.evictions],
            "waiting": [each.to_json() for each in self.waiting],
            "shapes_refused": self.shapes_refused,
            "refused": [refused.to_json() for refused in self.refused],
            "ended": [each.to_json() for each in self.ended],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "CaptureStatus":
        """Read the output of :meth:`to_json`; raises ``KeyError`` or ``TypeError`` for another document."""
        return cls(
            at_ms=fields["at_ms"],
            started_at_ms=fields["started_at_ms"],
            source=fields["source"],
            is_connected=fields["is_connected"],
            slot=None if fields["slot"] is None else SlotStatus.from_json(fields["slot"]),
            received_lsn=lsn_from_json(fields["received_lsn"]),
            published_lsn=lsn_from_json(fields["published_lsn"]),
            acknowledged_lsn=lsn_from_json(fields["acknowledged_lsn"]),
            confirmed_lsn=lsn_from_json(fields["confirmed_lsn"]),
            acks_read_at_ms=fields["acks_read_at_ms"],
            shapes=fields["shapes"],
            changes_matched=fields["changes_matched"],
            changes_unmatched=fields["changes_unmatched"],
            publish_queue_bytes=fields["publish_queue_bytes"],
            reconnects=fields["reconnects"],
            evicted=fields["evicted"],
            evictions=tuple(map(Eviction.from_json, fields["evictions"])),
            waiting=tuple(map(WaitingShapes.from_json, fields["waiting"])),
            shapes_refused=fields["shapes_refused"],
            refused=tuple(map(RefusedShape.from_json, fields["refused"])),
            ended=tuple(map(EndedShape.from_json, fields["ended"])),
        )
