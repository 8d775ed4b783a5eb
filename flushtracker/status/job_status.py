"""``JobStatus``: what the tracking job reports after each batch, the document of its ``/status.json``."""

from typing import Annotated

from flushtracker.status.document import Lsn, Natural, StatusObject, about, age, counter, gauge
from flushtracker.status.query_status import QueryStatus
from flushtracker.wal.names import LOG_WRITER


class Holder(StatusObject, frozen=True, rename={"shape_id": "shape"}):
    """A pending shape, and what it holds.

    ``held_bytes`` are counted from the ack that the shape alone would allow, just before its first pending commit, so
    those of the first holder are all that is not acknowledged. ``pending_transactions`` counts merged ones as one.
    """

    shape_id: Annotated[str, about("the shape's id")]
    since_ms: Annotated[
        Natural,
        age(
            "shape_pending_seconds",
            "since when it is pending without progress",
            "for how long the shape is pending without progress, of the ten shapes that hold the most",
        ),
    ]
    pending_transactions: Annotated[Natural, about("transactions that it has not flushed")]
    held_bytes: Annotated[
        Natural,
        gauge(
            "shape_held_bytes",
            "WAL from its first pending commit to the last commit seen",
            "WAL from the shape's first pending commit to the last one seen, of the ten shapes that hold the most",
        ),
    ]
    ack_if_removed: Annotated[
        Lsn,
        about("the ack that its removal would allow; the same as `ack_lsn` if another holds as much"),
    ]
    ack_if_all_removed: Annotated[
        Lsn | None,
        about(
            "the ack that its removal and that of all before it in the list would allow; `null` if the next pending "
            "shape, which decides it, is not in the list"
        ),
    ] = None
    writer: Annotated[str, about("the name of its writer, whose notification is missing")] = LOG_WRITER


class SourceStatus(StatusObject, frozen=True):
    """One source; its events count from the job's start."""

    source: Annotated[str, about("`<system identifier>/<timeline>/<slot>`, plus `/<epoch>` after a restore")]
    ack_lsn: Annotated[Lsn | None, gauge("ack_lsn", "the ack: all transactions up to it are safe")]
    last_seen_lsn: Annotated[
        Lsn | None,
        gauge("last_seen_lsn", "the last commit that the job has seen; the ack when nothing is pending"),
    ]
    pending_shapes: Annotated[Natural, gauge("pending_shapes", "shapes that have not flushed all that they were sent")]
    stalled_shapes: Annotated[
        Natural,
        gauge(
            "stalled_shapes",
            "pending shapes without progress for `track.stall_grace`; of each shape group at most ten are counted",
        ),
    ]
    waiting_since_ms: Annotated[
        Natural | None,
        age(
            "ack_age_seconds",
            "since when the ack has not moved although something is pending; `null` if nothing is. After the job's "
            "start, since when the first of `holders` is pending",
            "for how long the ack has not moved although something is pending; 0 if nothing is",
        ),
    ]
    holders: Annotated[
        tuple[Holder, ...],
        about("the shapes that hold the most, at most ten, the one that holds most first", most=10),
    ]
    retired_by: Annotated[
        str | None,
        gauge(
            "source_retired",
            "the source that has taken its place, after a failover or a restore; `null` if there is none. Then nothing "
            "waits for what is pending: `stalled_shapes` is 0 and `waiting_since_ms` `null`, and of the metrics there "
            "is only `flushtracker_source_retired`",
            "whether another source has taken the place of this one; then it has no other metric",
            value=lambda retired_by: retired_by is not None,
        ),
    ] = None
    events: Annotated[Natural, counter("events", "events of the source that were read")] = 0
    gap: Annotated[
        str | None,
        gauge(
            "source_set_aside",
            "the message about missing fragments, which have [set the source aside](runbook.md#flushtrackergap): it "
            "gets no further ack, and no shape is listed as pending; `null` if none are missing",
            "whether fragments of the source are missing, so that it gets no further ack",
            value=lambda gap: gap is not None,
        ),
    ] = None

    @property
    def unacknowledged_bytes(
        self,
    ) -> Annotated[Natural, gauge("unacknowledged_bytes", "WAL from the ack to the last commit seen")]:
        """Readers compute it themselves."""
        if self.last_seen_lsn is None:
            return 0
        return max(self.last_seen_lsn - (self.ack_lsn or 0), 0)


class OpenTransaction(StatusObject, frozen=True):
    """A transaction that hides records of a partition."""

    topic: Annotated[str, about("its topic")]
    partition: Annotated[Natural, about("its partition")]
    last_stable_offset: Annotated[int, about("the Kafka offset from which on it hides the partition")]
    hidden_records: Annotated[
        Natural, about("how many Kafka offsets there are from there on, its own records among them")
    ]
    since_ms: Annotated[Natural, about("when the job first saw it")]
    producers: Annotated[
        str,
        about(
            "the transactional ids that may have it open, with their `transaction.timeout.ms`; a producer's number, or "
            "`unknown`, where the job's user may not see more"
        ),
    ]


class JobStatus(QueryStatus, frozen=True, tag="track"):
    """What the tracking job says of itself."""

    sources: Annotated[tuple[SourceStatus, ...], about("one object for each source")] = ()
    events: Annotated[Natural, about("events that were read")] = 0
    dead_letters: Annotated[
        Natural,
        counter(
            "dead_letters",
            "refused flush notifications: malformed, or not of the shape's writer. Of the latter, at most ten for each "
            "group of shapes and batch",
        ),
    ] = 0
    open_transactions: Annotated[
        tuple[OpenTransaction, ...],
        about(
            "[transactions](writers.md#kafka-transactions) that have been open in the job's topics for more than 30 s: "
            "nothing behind them in their partition counts yet"
        ),
    ] = ()

    def age_ms(self, since_ms: int | None) -> int | None:
        """The time between ``since_ms`` and the document, by the job's clock; ``None`` for ``None``."""
        return None if since_ms is None else max(0, self.at_ms - since_ms)
