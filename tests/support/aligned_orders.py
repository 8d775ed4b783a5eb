"""Events in random orders, as an aligned tracker is given them."""

from collections.abc import Iterator
from random import Random

from flushtracker.events.stream_events import FragmentEvent
from flushtracker.tracking.aligned_tracker import AlignedTracker
from tests.support.random_wal import Case
from tests.support.wal_history import Event


def handle(tracker: AlignedTracker, event: Event, now_ms: int) -> int | None:
    """Give the tracker an event of the job's streams."""
    if isinstance(event, FragmentEvent):
        last_offsets = {shape.shape_id: shape.last_offset for shape in event.shapes}
        is_commit = event.commit is not None
        return tracker.handle_txn_fragment(event.last_log_offset, last_offsets, is_commit=is_commit, now_ms=now_ms)
    if event.type == "removed":
        return tracker.handle_shape_removed(event.shape_id, event.offset, now_ms=now_ms)
    return tracker.handle_flush_notification(event.shape_id, event.offset, now_ms=now_ms)


def random_order(rng: Random, case: Case) -> Iterator[Event]:
    """The stream in its order, flushes and removals anywhere; what is left is flushed at the end."""
    places = sorted(rng.randint(0, len(case.stream)) for _ in case.flushes)
    flushes = iter(zip(places, case.flushes, strict=True))
    place, flush = next(flushes, (-1, None))
    for index in range(len(case.stream) + 1):
        while flush is not None and place == index:
            yield flush
            place, flush = next(flushes, (-1, None))
        yield from case.stream[index : index + 1]
    yield from case.history.last_flushes()
