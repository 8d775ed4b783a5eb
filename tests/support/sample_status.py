"""Documents of running programs, made up: idle and stalled, with every figure known."""

import json
from typing import Any, Final, TypeVar

from msgspec import structs

from flushtracker.status.capture_status import CaptureStatus, Eviction, RefusedShape, SlotStatus
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus
from flushtracker.status.program_status import ProgramStatus, parse_status
from flushtracker.status.serve_status import AnswerCount, ServeStatus, TailStatus
from flushtracker.status.sink_status import SinkGroup, SinkShape, SinkStatus
from flushtracker.status.snapshot_status import AttemptStatus, SnapshotSource, SnapshotStatus, TableStatus
from flushtracker.status.write_status import (
    Failure,
    ShapeNote,
    SourceShapes,
    UpkeepStatus,
    WriteStatus,
    WrittenSource,
)

_S = TypeVar("_S", bound=ProgramStatus)

SOURCE: Final = "7301/1/shapes"
_LAST_SEEN: Final = 0x37F1CE7
_ACK: Final = 0x37F1C5E


def read_back(status: _S) -> _S:
    """What a reader of this document gets."""
    found = parse_status(json.dumps(status.to_json()).encode())
    assert isinstance(found, type(status))
    return found


def idle_job(now_ms: int) -> JobStatus:
    """A tracking job that has acknowledged all that it has seen."""
    return _job(now_ms, SourceStatus(SOURCE, _LAST_SEEN, _LAST_SEEN, 0, 0, None, (), events=54_321))


def stalled_job(now_ms: int, *, for_ms: int = 20 * 60_000) -> JobStatus:
    """A tracking job whose ack has waited for two shapes for ``for_ms``."""
    since_ms = now_ms - for_ms
    holders = (
        Holder("orders-open", since_ms, 3, _LAST_SEEN - _ACK, 0x37F1CA0, 0x37F1CA0),
        Holder("customers", since_ms + 1_000, 1, 64, 0x37F1C5E, _LAST_SEEN),
    )
    return _job(now_ms, SourceStatus(SOURCE, _ACK, _LAST_SEEN, 2, 1, since_ms, holders, events=54_321))


def capturing(now_ms: int, *, retained_bytes: int = 20_800_000, wal_status: str = "reserved") -> CaptureStatus:
    """Capture with a connection, of a server that limits how much WAL a slot may retain."""
    slot = SlotStatus(
        "shapes",
        now_ms - 500,
        is_active=True,
        wal_status=wal_status,
        written_lsn=_LAST_SEEN + 0x100,
        confirmed_lsn=_ACK + 1,
        retained_bytes=retained_bytes,
        safe_wal_bytes=3_900_000_000,
        failover_lacks=(),
    )
    return CaptureStatus(
        now_ms,
        now_ms - 7_200_000,
        SOURCE,
        is_connected=True,
        slot=slot,
        received_lsn=_LAST_SEEN + 0x80,
        published_lsn=_LAST_SEEN,
        acknowledged_lsn=_ACK,
        confirmed_lsn=_ACK + 1,
        acks_read_at_ms=now_ms - 400,
        shapes=5,
        changes_matched=12_345,
        changes_unmatched=678,
        publish_queue_bytes=4_096,
        reconnects=1,
        evicted=1,
        evictions=(Eviction("users-none", now_ms - 5_000_000, "held 50 GB"),),
        shapes_refused=1,
        refused=(RefusedShape("users-late", "shapes.yaml line 9: shape 'users-late': there is no table public.user"),),
    )


def writing(now_ms: int, **fields: Any) -> WriteStatus:
    """A writers' job that keeps up, and takes snapshots."""
    shapes = SourceShapes(5, 2, (ShapeNote("users-none", "held 50 GB"),), 2, ("customers", "orders-eu"))
    figures = SOURCE, _LAST_SEEN, now_ms - 300, now_ms - 1_500, 1_200, 54_321
    source = WrittenSource(*figures, shapes=shapes, cut_lsn=_LAST_SEEN - 0x100, cut_at_ms=now_ms - 900)
    status = WriteStatus(
        now_ms,
        now_ms - 7_200_000,
        is_ready=True,
        sources=(source,),
        batch_id=311,
        batch_at_ms=now_ms - 300,
        batches=300,
        batch_ms=150_000,
        rows_per_s=1_234,
        records_behind=12,
        state_bytes=900_000,
        failure=Failure(now_ms - 3_600_000, "broker unavailable"),
        upkeep=UpkeepStatus(now_ms - 4_000, merges=7, rewritten_bytes=1_000_000),
        snapshots=snapshotting(now_ms),
    )
    return structs.replace(status, **fields)


def snapshotting(now_ms: int, **fields: Any) -> SnapshotStatus:
    """A snapshots' job that reads a table."""
    status = SnapshotStatus(
        now_ms,
        now_ms - 7_200_000,
        AttemptStatus(SOURCE, "public.orders", 2, now_ms - 60_000, 100, 40, 1_000_000, 16_000, 90),
        (SnapshotSource(SOURCE, 2, 3, 50_000),),
        (TableStatus(SOURCE, "public.orders", 2), TableStatus(SOURCE, "public.customers", 0, 3, 50_000)),
        progress_at_ms=now_ms - 500,
    )
    return structs.replace(status, **fields)


def shapes_served(now_ms: int, **fields: Any) -> ServeStatus:
    """An HTTP server that sees the log, with clients."""
    status = ServeStatus(
        now_ms,
        now_ms - 7_200_000,
        source=SOURCE,
        looked_at_ms=now_ms - 400,
        looks=14_000,
        log_version=311,
        shapes=7,
        watched_shapes=2,
        connections=120,
        waiting_clients=118,
        answers=(AnswerCount(200, 54_000), AnswerCount(503, 3)),
        recent_answers=450,
        sent_bytes=7_000_000,
        log_reads=321,
        row_reads=12,
        tail=TailStatus(lag_ms=9, records=90_000, skipped_records=60_000, answers=40_000, memory_bytes=1_000_000),
    )
    return structs.replace(status, **fields)


def feeding(now_ms: int, *, held_ms: int | None = None, lost: int = 0, problem: str | None = None) -> SinkStatus:
    """The feeder of Kafka sinks, with a group that keeps up and one that may not."""
    since_ms = None if held_ms is None else now_ms - held_ms
    groups = SinkGroup("search"), SinkGroup("store", 0 if held_ms is None else 1_200, since_ms, lost)
    shape = SinkShape("orders", "app.public.orders", problem=problem, flushed_lsn=_LAST_SEEN, groups=groups)
    return SinkStatus(now_ms, now_ms - 7_200_000, SOURCE, now_ms - 400, 17, now_ms - 900, 1, (shape,))


def _job(now_ms: int, source: SourceStatus) -> JobStatus:
    return JobStatus(
        now_ms,
        now_ms - 7_200_000,
        is_ready=True,
        sources=(source,),
        batch_id=412,
        batch_at_ms=now_ms - 300,
        batches=400,
        batch_ms=120_000,
        events=54_321,
        dead_letters=2,
        records_behind=17,
        state_bytes=1_900_000,
    )
