"""``SinkStatus``: what `flushtracker sink` reports: the groups of each shape, and which of them holds it."""

from typing import Annotated, Final

from flushtracker.status.document import Document, Lsn, Natural, StatusObject, about, age, counter, gauge

MOST_LISTED: Final = 20


class SinkGroup(StatusObject, frozen=True):
    """A consumer group of a shape's topic."""

    group: Annotated[str, about("the group")]
    unread: Annotated[
        Natural, gauge("sink_group_unread", "Kafka offsets up to the last record, from what it has committed")
    ] = 0
    holds_since_ms: Annotated[
        Natural | None,
        age(
            "sink_group_holds_seconds",
            "when it last committed, or began to hold the shape; `null` if it does not hold it",
            "for how long it has held the shape without a commit; 0 if it does not hold it",
        ),
    ] = None
    lost_partitions: Annotated[
        Natural,
        gauge("sink_group_lost_partitions", "partitions in which records were deleted that it had not read"),
    ] = 0


class SinkShape(StatusObject, frozen=True, rename={"shape_id": "shape"}):
    """A shape that is written to a topic."""

    shape_id: Annotated[str, about("the shape's id")]
    topic: Annotated[str, about("its topic")]
    waits_for_snapshot: Annotated[bool, about("whether its changes wait for its snapshot")] = False
    problem: Annotated[str | None, about("why it is set aside; `null` if it is not")] = None
    flushed_lsn: Annotated[
        Lsn | None, about("the last commit that all groups have read since the start; `null` before the first")
    ] = None
    groups: Annotated[tuple[SinkGroup, ...], about("its groups")] = ()


class SinkStatus(Document, frozen=True, tag="sink"):
    """What the program that feeds Kafka sinks says of itself."""

    source: Annotated[str | None, about("whose shapes these are; `null` if there are none, or of several sources")] = (
        None
    )
    looked_at_ms: Annotated[
        Natural | None,
        gauge("sink_look_timestamp_seconds", "when it last looked at what the groups have committed; `null` before"),
    ] = None
    transactions: Annotated[Natural, counter("sink_transactions", "transactions of records that were committed")] = 0
    transaction_at_ms: Annotated[Natural | None, about("when the last one was; `null` before the first")] = None
    shape_count: Annotated[Natural, gauge("sink_shapes", "shapes that are written")] = 0
    shapes: Annotated[
        tuple[SinkShape, ...],
        about(
            "at most twenty of them, with the metrics of their groups: first those that are set aside, then those of "
            "which a group has lost records, then those that a group has held for longest, then those that wait for "
            "their snapshots",
            most=MOST_LISTED,
        ),
    ] = ()

    @property
    def not_ready_because(self) -> str | None:
        return None if self.looked_at_ms is not None else "it has not looked at what the groups have committed yet"
