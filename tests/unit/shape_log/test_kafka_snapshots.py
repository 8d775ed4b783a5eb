"""The snapshots that the stream ``snapshots_taken`` lists, without a broker."""

from collections.abc import Iterator

import pytest

from flushtracker.events.snapshot_events import SnapshotEnd, SnapshotEvent
from flushtracker.shape_log.snapshot.kafka_snapshots import KafkaSnapshots
from flushtracker.wal.contained_transactions import ContainedTransactions


class Reader:
    """A topic with an event, and others that are none."""

    def values(self, topic: str) -> Iterator[bytes]:
        assert topic == "taken"
        end = SnapshotEnd(0, ContainedTransactions(900, ()))
        yield from (b"garbage", b'{"v": 1}', SnapshotEvent("7/1/s", "users", 5, 0, (), end, 2).to_json().encode())


def test_a_malformed_event_of_a_snapshot_keeps_no_other_shape_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """Its own shape counts as one without a snapshot, so it gets another one, which replaces the event."""
    store = object.__new__(KafkaSnapshots)
    vars(store).update(_reader=Reader(), _topics={"snapshots_taken": "taken"})
    assert store.taken() == {("7/1/s", "users"): 2}
    assert caplog.text.count("event of a snapshot malformed topic=taken") == 2
