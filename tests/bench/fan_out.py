"""Changes for many shapes: the memory that routing and publishing them takes, and the time."""

import tracemalloc
from collections.abc import Callable, Iterator

from flushtracker.capture.event_limit import EventLimit
from flushtracker.capture.outbox import Outbox
from flushtracker.errors import FlushtrackerError
from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.kafka.kafka_config import Topics
from flushtracker.kafka.topic_rules import MAX_EVENT_BYTES
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.changes import Commit, Insert, TransactionFragment
from flushtracker.wal.fragment_converter import DEFAULT_MAX_BATCH_BYTES
from flushtracker.wal.log_offset import LogOffset
from tests.bench import wal
from tests.bench.measure import Table, seconds

CHANGES = 100
ORDERS = wal.orders()
COMMIT = Commit("2026-11-21T01:02:03.456789Z", 2)


class _Discarding:
    """A publisher whose brokers confirm at once, so that nothing is kept in its queue."""

    gate: Callable[[], bool] | None = None

    def publish(
        self, topic: str, key: str | bytes, value: str | bytes | None, on_confirmed: Callable[[], None] | None = None
    ) -> None:
        del topic, key, value
        if on_confirmed is not None:
            on_confirmed()

    def poll(self, timeout_s: float = 0.0) -> None:
        del timeout_s

    def flush(self, timeout_s: float) -> None:
        del timeout_s

    def abandon(self, failure: FlushtrackerError) -> None:
        del failure


class _Capture:
    """What capture does with a fragment once it is decoded, for shapes that all take every row."""

    def __init__(self, shapes: int) -> None:
        self.limit = EventLimit(MAX_EVENT_BYTES, DEFAULT_MAX_BATCH_BYTES)
        where = [f"tenant_id <> -{number + 1}" for number in range(shapes)]
        self.router = EventRouter(
            ShapeDefinition(f"orders-{number}", ORDERS.table, where=text, primary_key=("id",))
            for number, text in enumerate(where)
        )
        self.sequencer = FragmentSequencer("7301/1/shapes", 1, max_event_bytes=self.limit.max_event_bytes)
        topics = Topics("fragments", "flushes", "shapes", "changes")
        self.outbox = Outbox(_Discarding(), topics, lambda _: None, self.limit)
        self.lsn = 1_000

    def handle(self, changes: int) -> None:
        self.lsn += 1_000
        inserts = tuple(Insert(ORDERS, LogOffset(self.lsn, 2 * n), wal.row(n, 1)) for n in range(changes))
        rest: TransactionFragment | None = TransactionFragment(
            742, self.lsn, inserts[-1].offset, has_begin=True, commit=COMMIT, changes=inserts
        )
        while rest is not None:
            routed = self.router.route_some(rest, self.limit.max_items_bytes)
            self.outbox.publish_fragment(self.sequencer.sequence(routed.fragment, routed.parts))
            rest = routed.rest


def tables(*, quick: bool = False) -> Iterator[Table]:
    rows = []
    for shapes in (10, 100) if quick else (10, 1_000, 5_000):
        capture = _Capture(shapes)
        capture.handle(1)
        time_s = min(seconds(lambda each=capture: each.handle(CHANGES)) for _ in range(3))  # type: ignore[misc]
        tracemalloc.start()
        capture.handle(CHANGES)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        rows.append([f"{shapes:,}", f"{peak / 1e6:,.1f}", f"{time_s / CHANGES / shapes * 1e6:.2f}"])
    yield Table(
        f"A fragment of {CHANGES} changes for each of many shapes, routed, serialized and published",
        ["shapes", "peak memory, MB", "µs for each item"],
        rows,
    )
