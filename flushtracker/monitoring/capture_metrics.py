"""Capture's metrics: its document as OpenMetrics families."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from flushtracker.monitoring.metric_families import counter, gauge
from flushtracker.status.capture_status import CaptureStatus, SlotStatus

WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")
"""The values of ``pg_replication_slots.wal_status``."""


def capture_metrics(status: CaptureStatus) -> Iterator[Metric]:
    """Every family, also one that has no sample at the moment."""
    yield from _slot_metrics(status.slot)
    is_ready = status.is_connected and status.slot is not None
    yield gauge("ready", "Whether capture is connected and has read its slot.", is_ready)
    yield gauge(
        "connected", "Whether the replication connection stands, and the shapes are known.", status.is_connected
    )
    yield gauge("received_lsn", "How far capture has received the WAL, a byte position.", status.received_lsn)
    yield gauge(
        "published_lsn", "How far Kafka has confirmed what capture published, a byte position.", status.published_lsn
    )
    yield gauge("confirmed_lsn", "How far capture has confirmed the slot, a byte position.", status.confirmed_lsn)
    read_at_s = None if status.acks_read_at_ms is None else status.acks_read_at_ms / 1_000
    yield gauge("ack_read_timestamp_seconds", "When the ack table was last read without an error.", read_at_s)
    yield gauge("shapes", "Shapes to which capture routes changes.", status.shapes)
    yield counter(
        "changes",
        "Changes since capture's start, by whether they concerned a shape.",
        labels=("matched",),
        samples=[(("true",), status.changes_matched), (("false",), status.changes_unmatched)],
    )
    yield gauge("publish_queue_bytes", "Events that Kafka has not confirmed yet.", status.publish_queue_bytes)
    yield counter("reconnects", "Connections to PostgreSQL after the first one.", status.reconnects)
    # The document also has those before: counted, they would look new to an alert after each start.
    evictions = sum(eviction.at_ms >= status.started_at_ms for eviction in status.evictions)
    yield counter("evictions", "Shapes removed by the policy of stall since capture's start.", evictions)


def _slot_metrics(slot: SlotStatus | None) -> Iterator[Metric]:
    yield gauge("slot_active", "Whether a connection uses the slot.", None if slot is None else slot.is_active)
    yield gauge("slot_retained_bytes", "WAL that the slot keeps.", None if slot is None else slot.retained_bytes)
    yield gauge(
        "slot_safe_wal_bytes",
        "WAL that may still be written before the slot is lost; absent where the server sets no limit.",
        None if slot is None else slot.safe_wal_bytes,
    )
    known = WAL_STATUSES if slot is None or slot.wal_status is None else {*WAL_STATUSES, slot.wal_status}
    yield gauge(
        "slot_wal_status",
        "The slot's wal_status in pg_replication_slots: 1 for the one that it has.",
        labels=("wal_status",),
        samples=[((name,), None if slot is None else name == slot.wal_status) for name in sorted(known)],
    )
    yield gauge(
        "written_lsn",
        "The end of the WAL when the slot was read, a byte position.",
        None if slot is None else slot.written_lsn,
    )
    read_at_s = None if slot is None else slot.at_ms / 1_000
    yield gauge("slot_read_timestamp_seconds", "When the slot was read.", read_at_s)
