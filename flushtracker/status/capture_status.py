"""``CaptureStatus``: what capture reports about itself and its slot, the document of its ``/status.json``."""

from typing import Annotated

from flushtracker.status.document import Document, Lsn, Natural, StatusObject, about, counter, gauge


class SlotStatus(StatusObject, frozen=True):
    """The slot, as PostgreSQL showed it in ``pg_replication_slots``."""

    name: Annotated[str, about("its name")]
    at_ms: Annotated[
        Natural, gauge("slot_read_timestamp_seconds", "when PostgreSQL showed it so", "when the slot was read")
    ]
    is_active: Annotated[bool, gauge("slot_active", "whether a connection uses the slot")]
    wal_status: Annotated[
        str | None, about("`reserved`, `extended`, `unreserved` or `lost`, as in `pg_replication_slots`")
    ]
    written_lsn: Annotated[Lsn, gauge("written_lsn", "the end of the server's WAL when the slot was read")]
    confirmed_lsn: Annotated[Lsn | None, about("`confirmed_flush_lsn` of the slot")]
    retained_bytes: Annotated[Natural, gauge("slot_retained_bytes", "WAL that the slot keeps")]
    safe_wal_bytes: Annotated[
        int | None,
        gauge(
            "slot_safe_wal_bytes",
            "WAL that may still be written before the slot is lost; `null` where the server sets no limit, or the slot "
            "is lost",
            "WAL that may still be written before the slot is lost; absent where the server sets no limit",
        ),
    ]
    failover_lacks: Annotated[
        tuple[str, ...] | None,
        gauge(
            "slot_failover_ready",
            "what the slot lacks to survive a failover, in words; an empty list if nothing; `null` where none is "
            "prepared: no standby is known, or before PostgreSQL 17",
            "whether the slot would survive a failover; absent where none is prepared",
            value=lambda lacks: None if lacks is None else not lacks,
        ),
    ] = None


class Eviction(StatusObject, frozen=True, rename={"shape_id": "shape"}):
    """A shape that capture has evicted."""

    shape_id: Annotated[str, about("the shape's id")]
    at_ms: Annotated[Natural, about("when it was removed")]
    reason: Annotated[str, about("why")]


class WaitingShapes(StatusObject, frozen=True, rename={"shape_ids": "shapes"}):
    """Shapes on one table that are defined and not added yet."""

    table: Annotated[str, about("their table; in the object after the first twenty, how many others there are")]
    shape_ids: Annotated[tuple[str, ...], about("their ids, at most ten")]
    count: Annotated[Natural, about("how many there are")]
    reason: Annotated[str, about("why they wait")]
    statement: Annotated[
        str | None,
        about(
            "the SQL that somebody has to run; `null` if they wait for something else, such as the end of a transaction"
        ),
    ]


class RefusedShape(StatusObject, frozen=True, rename={"shape_id": "shape"}):
    """Something of the shapes file that capture has not taken."""

    shape_id: Annotated[
        str | None, about("the shape's id; `null` if it cannot be read, or if the whole file is refused")
    ]
    reason: Annotated[str, about("what is wrong, with file and line")]


class EndedShape(StatusObject, frozen=True, rename={"shape_id": "shape"}):
    """A shape that is still defined, and that capture has ended. ``flushtracker resync`` begins it again."""

    shape_id: Annotated[str, about("the shape's id")]
    incarnation: Annotated[int, about("its incarnation that has ended")]
    removed_lsn: Annotated[Lsn, about("where it has ended")]
    reason: Annotated[str, about("why capture has ended it")]
    evicted_at_ms: Annotated[
        Natural | None,
        about("when the policy of `evict` ended it; `null` if capture could not keep it correct"),
    ] = None


class CaptureStatus(Document, frozen=True, tag="capture"):
    """What capture says of itself. A change that is resent counts again."""

    source: Annotated[str | None, about("the source that it publishes; `null` before the first connection")]
    is_connected: Annotated[
        bool, gauge("connected", "whether the replication connection is open, and the shapes are known")
    ]
    slot: Annotated[SlotStatus | None, about("the slot, as PostgreSQL showed it; `null` before it was read")] = None
    received_lsn: Annotated[Lsn | None, gauge("received_lsn", "how far capture has received the WAL")] = None
    published_lsn: Annotated[
        Lsn | None, gauge("published_lsn", "how far Kafka has confirmed what capture published")
    ] = None
    acknowledged_lsn: Annotated[Lsn | None, about("the ack that it has read from the ack table")] = None
    confirmed_lsn: Annotated[Lsn | None, gauge("confirmed_lsn", "how far capture has confirmed the slot")] = None
    acks_read_at_ms: Annotated[
        Natural | None,
        gauge("ack_read_timestamp_seconds", "when the ack table was last read without an error"),
    ] = None
    shapes: Annotated[Natural, gauge("shapes", "shapes to which capture routes changes")] = 0
    changes_matched: Annotated[
        Natural,
        counter(
            "changes", "changes that concerned a shape", "changes, by whether they concerned a shape", matched="true"
        ),
    ] = 0
    changes_unmatched: Annotated[Natural, counter("changes", "changes that concerned none", matched="false")] = 0
    publish_queue_bytes: Annotated[Natural, gauge("publish_queue_bytes", "events that Kafka has not confirmed yet")] = 0
    reconnects: Annotated[Natural, counter("reconnects", "connections to PostgreSQL after the first")] = 0
    evicted: Annotated[
        Natural, counter("evictions", "shapes removed by the policy of `evict` since capture's start")
    ] = 0
    evictions: Annotated[
        tuple[Eviction, ...],
        about(
            "the last hundred of the source's shapes that were removed by that policy, also before capture's start, "
            "the oldest first",
            most=100,
        ),
    ] = ()
    waiting: Annotated[
        tuple[WaitingShapes, ...],
        gauge(
            "shapes_waiting",
            "shapes that are defined, but not added yet, one object for each table and reason, and one for those "
            "after the first twenty",
            "shapes that are defined, but not added yet",
            value=lambda waiting: sum(each.count for each in waiting),
        ),
    ] = ()
    shapes_refused: Annotated[
        Natural,
        gauge(
            "shapes_refused",
            "entries of the shapes file that capture has not taken; a file that is refused as a whole counts as one",
        ),
    ] = 0
    refused: Annotated[
        tuple[RefusedShape, ...], about("why, the first twenty reasons; an entry may have several", most=20)
    ] = ()
    ended: Annotated[
        tuple[EndedShape, ...],
        gauge(
            "shapes_ended",
            "shapes that are still defined and have ended, at most a hundred by id: "
            "[`flushtracker resync`](operating.md#beginning-a-shape-again) begins them again",
            "shapes that are still defined and have ended, at most 100",
            value=len,
        ),
    ] = ()

    @property
    def not_ready_because(self) -> str | None:
        """Why the program does not do its work now; ``None`` if it is ready."""
        if not self.is_connected:
            return "there is no replication connection to PostgreSQL, or the shapes have not been read yet"
        return "the slot has not been read yet" if self.slot is None else None
