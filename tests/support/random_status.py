"""Random documents of running programs, with names that nobody would choose."""

from dataclasses import fields
from random import Random
from typing import Any, Final, TypeVar

from flushtracker.status.capture_status import (
    CaptureStatus,
    EndedShape,
    Eviction,
    RefusedShape,
    SlotStatus,
    WaitingShapes,
)
from flushtracker.status.job_status import Holder, JobStatus, OpenTransaction, SourceStatus
from flushtracker.status.serve_status import AnswerCount, ServeStatus
from flushtracker.status.snapshot_status import (
    AttemptStatus,
    ShapeFailure,
    SnapshotSource,
    SnapshotStatus,
    TableStatus,
)
from flushtracker.status.write_status import (
    Failure,
    ShapeNote,
    SourceShapes,
    UpkeepStatus,
    WriteStatus,
    WrittenSource,
)

_T = TypeVar("_T")

NAMES: Final = (
    "orders",
    'quoted "id"',
    "back\\slash",
    "two\nlines",
    "<script>alert(1)</script>",
    "аудит",
    "{shape}",
    "a,b=c",
    "z" * 300,
    " ",
)


def random_job(rng: Random) -> JobStatus:
    """A job's document; every value that may be unknown sometimes is."""
    names = rng.sample(NAMES, rng.randrange(4))
    return JobStatus(
        at_ms=_time(rng),
        started_at_ms=_time(rng),
        is_ready=rng.random() < 0.5,
        sources=tuple(_source(rng, name) for name in names),
        batch_id=_maybe(rng, rng.randrange(10**6)),
        batch_at_ms=_maybe(rng, _time(rng)),
        batches=rng.randrange(10**6),
        batch_ms=rng.randrange(10**9),
        events=rng.randrange(10**12),
        dead_letters=rng.randrange(100),
        records_behind=_maybe(rng, rng.randrange(10**6)),
        state_bytes=_maybe(rng, rng.randrange(10**9)),
        batch_running_since_ms=_maybe(rng, _time(rng)),
        open_transactions=tuple(
            OpenTransaction(rng.choice(NAMES), rng.randrange(9), rng.randrange(10**6), 1, _time(rng), rng.choice(NAMES))
            for _ in range(rng.choice([0, 0, 0, 2]))
        ),
    )


def random_capture(rng: Random) -> CaptureStatus:
    """A document of capture; every value that may be unknown sometimes is."""
    return CaptureStatus(
        at_ms=_time(rng),
        started_at_ms=_time(rng),
        source=_maybe(rng, rng.choice(NAMES)),
        is_connected=rng.random() < 0.5,
        slot=_slot(rng) if rng.random() < 0.8 else None,
        received_lsn=_maybe(rng, _lsn(rng)),
        published_lsn=_maybe(rng, _lsn(rng)),
        acknowledged_lsn=_maybe(rng, _lsn(rng)),
        confirmed_lsn=_maybe(rng, _lsn(rng)),
        acks_read_at_ms=_maybe(rng, _time(rng)),
        shapes=rng.randrange(10**6),
        changes_matched=rng.randrange(10**9),
        changes_unmatched=rng.randrange(10**9),
        publish_queue_bytes=rng.randrange(10**9),
        reconnects=rng.randrange(100),
        evicted=rng.randrange(9),
        evictions=tuple(Eviction(name, _time(rng), "held 50 GB") for name in rng.sample(NAMES, rng.randrange(3))),
        waiting=tuple(_waiting(rng) for _ in range(rng.randrange(3))),
        shapes_refused=rng.randrange(100),
        refused=tuple(RefusedShape(_maybe(rng, name), "no table") for name in rng.sample(NAMES, rng.randrange(3))),
        ended=tuple(
            EndedShape(name, rng.randrange(1, 9), _lsn(rng), "its table was dropped", _maybe(rng, _time(rng)))
            for name in _some(rng)
        ),
    )


def random_write(rng: Random) -> WriteStatus:
    """A document of the writers' job; every value that may be unknown sometimes is."""
    return WriteStatus(
        at_ms=_time(rng),
        started_at_ms=_time(rng),
        is_ready=rng.random() < 0.5,
        sources=tuple(_written(rng, name) for name in rng.sample(NAMES, rng.randrange(4))),
        batch_id=_maybe(rng, rng.randrange(10**6)),
        batch_at_ms=_maybe(rng, _time(rng)),
        batch_running_since_ms=_maybe(rng, _time(rng)),
        batches=rng.randrange(10**6),
        batch_ms=rng.randrange(10**9),
        rows_per_s=rng.randrange(10**5),
        records_behind=_maybe(rng, rng.randrange(10**6)),
        state_bytes=_maybe(rng, rng.randrange(10**9)),
        failure=_maybe(rng, Failure(_time(rng), rng.choice(NAMES))),
        upkeep=UpkeepStatus(
            _maybe(rng, _time(rng)),
            _maybe(rng, _time(rng)),
            _maybe(rng, _time(rng)),
            _maybe(rng, rng.choice(NAMES)),
            *_counts(rng, 6),
        ),
        snapshots=_maybe(rng, random_snapshot(rng)),
    )


def random_snapshot(rng: Random) -> SnapshotStatus:
    """A document of the snapshots' job; every value that may be unknown sometimes is."""
    attempt = AttemptStatus("s", rng.choice(NAMES), 5, _time(rng), 100, rng.randrange(100), 7, 3, _maybe(rng, 9))
    tables = [TableStatus(rng.choice(NAMES), name, *_counts(rng, 3)) for name in rng.sample(NAMES, rng.randrange(4))]
    return SnapshotStatus(
        at_ms=_time(rng),
        started_at_ms=_time(rng),
        attempt=_maybe(rng, attempt),
        sources=tuple(SnapshotSource(name, *_counts(rng, 3)) for name in rng.sample(NAMES, rng.randrange(4))),
        tables=tuple(tables),
        waiting_shapes=rng.randrange(9),
        failed_shapes=rng.randrange(9),
        failures=tuple(random_failure(rng, name) for name in rng.sample(NAMES, rng.randrange(4))),
        server_error=_maybe(rng, "unreachable"),
        progress_at_ms=_maybe(rng, _time(rng)),
        next_look_at_ms=_maybe(rng, _time(rng)),
    )


def random_serve(rng: Random) -> ServeStatus:
    """A document of the HTTP server; every value that may be unknown sometimes is."""
    counts: dict[str, Any] = {each.name: rng.randrange(10**6) for each in fields(ServeStatus) if each.type is int}
    unknown: dict[str, Any] = {
        "source": _maybe(rng, rng.choice(NAMES)),
        "not_ready_because": _maybe(rng, rng.choice(NAMES)),
        "problem": _maybe(rng, rng.choice(NAMES)),
        "looked_at_ms": _maybe(rng, _time(rng)),
    }
    answers = tuple(AnswerCount(status, rng.randrange(10**6)) for status in rng.sample([200, 304, 409, 500, 503], 3))
    times = {"at_ms": _time(rng), "started_at_ms": _time(rng)}
    return ServeStatus(**{**counts, **unknown, "answers": answers, **times})


def random_failure(rng: Random, shape_id: str) -> ShapeFailure:
    """A failure of this shape."""
    names = rng.choice(NAMES), rng.choice(NAMES)
    return ShapeFailure("s", shape_id, *names, rng.randrange(1, 9), _time(rng), _time(rng))


def _written(rng: Random, name: str) -> WrittenSource:
    notes = tuple(ShapeNote(shape, rng.choice(NAMES)) for shape in rng.sample(NAMES, rng.randrange(4)))
    without = tuple(rng.sample(NAMES, rng.randrange(4)))
    shapes = SourceShapes(rng.randrange(10**5), len(notes), notes, len(without), without)
    return WrittenSource(
        name,
        _maybe(rng, _lsn(rng)),
        _maybe(rng, _time(rng)),
        _maybe(rng, _time(rng)),
        _maybe(rng, rng.randrange(10**6)),
        rng.randrange(10**9),
        len(notes),
        notes,
        _maybe(rng, shapes),
        _maybe(rng, _lsn(rng)),
        _maybe(rng, _time(rng)),
    )


def _counts(rng: Random, number: int) -> list[int]:
    return [rng.randrange(10**6) for _ in range(number)]


def _some(rng: Random) -> list[str]:
    return rng.sample(NAMES, rng.randrange(3))


def _waiting(rng: Random) -> WaitingShapes:
    names = tuple(rng.sample(NAMES, rng.randrange(1, 4)))
    return WaitingShapes(rng.choice(NAMES), names, len(names), "not the owner", _maybe(rng, "ALTER PUBLICATION …"))


def _source(rng: Random, name: str) -> SourceStatus:
    holders = tuple(
        Holder(
            shape,
            _time(rng),
            rng.randrange(1, 5_000),
            rng.randrange(10**12),
            _lsn(rng),
            _maybe(rng, _lsn(rng)),
        )
        for shape in rng.sample(NAMES, rng.randrange(len(NAMES) + 1))
    )
    since = _maybe(rng, _time(rng))
    lsns = _maybe(rng, _lsn(rng)), _maybe(rng, _lsn(rng))
    stalled, retired_by = rng.randrange(len(holders) + 1), rng.choice([None, None, rng.choice(NAMES)])
    gap = _maybe(rng, "a.jsonl:1: fragment 0/514+0 follows 0/4B0+0, but the chain ends at transaction 0/44C")
    return SourceStatus(name, *lsns, len(holders), stalled, since, holders, retired_by, gap=gap)


def _slot(rng: Random) -> SlotStatus:
    return SlotStatus(
        "shapes",
        _time(rng),
        is_active=rng.random() < 0.5,
        wal_status=_maybe(rng, rng.choice(("reserved", "extended", "unreserved", "lost", "new"))),
        written_lsn=_lsn(rng),
        confirmed_lsn=_maybe(rng, _lsn(rng)),
        retained_bytes=rng.randrange(10**12),
        safe_wal_bytes=_maybe(rng, rng.randrange(-(10**9), 10**12)),
        failover_lacks=_maybe(rng, ("synchronized_standby_slots is empty",) * rng.randrange(3)),
    )


def _lsn(rng: Random) -> int:
    return rng.randrange(2**64)


def _time(rng: Random) -> int:
    return rng.randrange(1_700_000_000_000, 1_900_000_000_000)


def _maybe(rng: Random, value: _T) -> _T | None:
    return value if rng.random() < 0.8 else None
