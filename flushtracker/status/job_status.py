"""``JobStatus``: what the tracking job reports after each batch, the document of its ``/status.json``.

LSNs are text in JSON and numbers here, ``None`` if there is none yet. Times are milliseconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from flushtracker.status.json_document import lsn_from_json, lsn_to_json
from flushtracker.wal.lsn import format_lsn, parse_lsn
from flushtracker.wal.names import LOG_WRITER

TRACK: Final = "track"
"""The ``program`` of the document."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A pending shape, its ``writer``, and what it holds.

    ``held_bytes`` of WAL are from its first pending commit to the last one seen.

    ``since_ms`` is when it became pending, or last made progress. ``pending_transactions`` counts merged ones as one.
    ``held_bytes`` are counted from the ack that the shape alone would allow, just before that commit, so those of the
    first holder are all that is not acknowledged. ``ack_if_removed`` is the ack if it alone were removed: the present
    one for each but the first, and at most the last commit seen. ``ack_if_all_removed`` is likewise the ack if it and
    all holders before it were removed, ``None`` where it is not known because the next pending shape is not listed.
    """

    shape_id: str
    since_ms: int
    pending_transactions: int
    held_bytes: int
    ack_if_removed: int
    ack_if_all_removed: int | None = None
    writer: str = LOG_WRITER

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": self.shape_id,
            "writer": self.writer,
            "since_ms": self.since_ms,
            "pending_transactions": self.pending_transactions,
            "held_bytes": self.held_bytes,
            "ack_if_removed": format_lsn(self.ack_if_removed),
            "ack_if_all_removed": lsn_to_json(self.ack_if_all_removed),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Holder":
        return cls(
            fields["shape"],
            fields["since_ms"],
            fields["pending_transactions"],
            fields["held_bytes"],
            parse_lsn(fields["ack_if_removed"]),
            lsn_from_json(fields["ack_if_all_removed"]),
            fields["writer"],
        )


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source. ``holders`` are its shapes that hold the most, at most ten, those that hold most first.

    ``stalled_shapes`` counts at most ten of each shape group. ``waiting_since_ms`` is since when the ack has not moved
    although something is pending, ``None`` if nothing is; after the job's start, since when the first holder is.
    ``retired_by``: the source that has taken its place, after a failover or a restore. Then nothing waits for what is
    pending, and nothing is stalled. ``events`` count from the job's start. With a ``gap``, the message of a missing
    fragment, the source is set aside: it gets no further ack, and which shapes are pending is not known.
    """

    source: str
    ack_lsn: int | None
    last_seen_lsn: int | None
    pending_shapes: int
    stalled_shapes: int
    waiting_since_ms: int | None
    holders: tuple[Holder, ...]
    retired_by: str | None = None
    events: int = 0
    gap: str | None = None

    @property
    def unacknowledged_bytes(self) -> int:
        """The WAL between the ack and the last commit seen."""
        if self.last_seen_lsn is None:
            return 0
        return max(self.last_seen_lsn - (self.ack_lsn or 0), 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "ack_lsn": lsn_to_json(self.ack_lsn),
            "last_seen_lsn": lsn_to_json(self.last_seen_lsn),
            "unacknowledged_bytes": self.unacknowledged_bytes,
            "pending_shapes": self.pending_shapes,
            "stalled_shapes": self.stalled_shapes,
            "waiting_since_ms": self.waiting_since_ms,
            "holders": [holder.to_json() for holder in self.holders],
            "retired_by": self.retired_by,
            "events": self.events,
            "gap": self.gap,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "SourceStatus":
        return cls(
            fields["source"],
            lsn_from_json(fields["ack_lsn"]),
            lsn_from_json(fields["last_seen_lsn"]),
            fields["pending_shapes"],
            fields["stalled_shapes"],
            fields["waiting_since_ms"],
            tuple(map(Holder.from_json, fields["holders"])),
            fields["retired_by"],
            fields["events"],
            fields["gap"],
        )


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that hides ``hidden_records`` of a partition from its Kafka offset ``last_stable_offset`` on.

    ``since_ms`` is when the job first saw it, ``producers`` who may have it open.
    """

    topic: str
    partition: int
    last_stable_offset: int
    hidden_records: int
    since_ms: int
    producers: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "OpenTransaction":
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The tracking job at ``at_ms``. The sums count from its start; ``batch_ms`` is what batches took on the driver.

    ``is_ready`` says whether its query runs: its state is read, and a batch has ended or there was nothing to read.
    ``records_behind`` is how many records the topics had at the last batch that it did not read, ``None`` without Kafka
    or a batch. ``state_bytes`` is the memory that the state takes, as Spark's state store estimates it.
    ``batch_running_since_ms`` is when the present batch began, ``None`` between two batches. ``open_transactions`` are
    those that have hidden records of its topics for long. All else is as of the last batch that has ended, so it is
    stale if that was long ago.
    """

    at_ms: int
    started_at_ms: int
    is_ready: bool
    sources: tuple[SourceStatus, ...] = ()
    batch_id: int | None = None
    batch_at_ms: int | None = None
    batches: int = 0
    batch_ms: int = 0
    events: int = 0
    dead_letters: int = 0
    records_behind: int | None = None
    state_bytes: int | None = None
    batch_running_since_ms: int | None = None
    open_transactions: tuple[OpenTransaction, ...] = ()

    def age_ms(self, since_ms: int | None) -> int | None:
        """How long before the document a time in it was, by the job's clock; ``None`` for ``None``."""
        return None if since_ms is None else max(0, self.at_ms - since_ms)

    @property
    def not_ready_because(self) -> str | None:
        """Why the program does not do its work yet; ``None`` if it is ready.

        A job stays ready during a long batch: a restart would only make it longer. There is an alert for it.
        """
        return None if self.is_ready else "the query is starting: it reads its state or runs its first batch"

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "program": TRACK,
            "at_ms": self.at_ms,
            "started_at_ms": self.started_at_ms,
            "is_ready": self.is_ready,
            "sources": [source.to_json() for source in self.sources],
            "batch_id": self.batch_id,
            "batch_at_ms": self.batch_at_ms,
            "batch_running_since_ms": self.batch_running_since_ms,
            "batches": self.batches,
            "batch_ms": self.batch_ms,
            "events": self.events,
            "dead_letters": self.dead_letters,
            "records_behind": self.records_behind,
            "state_bytes": self.state_bytes,
            "open_transactions": [each.to_json() for each in self.open_transactions],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "JobStatus":
        """Read the output of :meth:`to_json`; raises ``KeyError`` or ``TypeError`` for another document."""
        names = ("batch_id", "batch_at_ms", "batches", "batch_ms", "events", "dead_letters")
        return cls(
            at_ms=fields["at_ms"],
            started_at_ms=fields["started_at_ms"],
            is_ready=fields["is_ready"],
            sources=tuple(map(SourceStatus.from_json, fields["sources"])),
            open_transactions=tuple(map(OpenTransaction.from_json, fields["open_transactions"])),
            **{name: fields[name] for name in (*names, "records_behind", "state_bytes", "batch_running_since_ms")},
        )
