"""Random documents of running programs, with names that nobody would choose."""

from random import Random
from typing import Final, TypeVar

from flushtracker.status.capture_status import CaptureStatus, Eviction, RefusedShape, SlotStatus, WaitingShapes
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus

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
        evictions=tuple(Eviction(name, _time(rng), "held 50 GB") for name in rng.sample(NAMES, rng.randrange(3))),
        waiting=tuple(_waiting(rng) for _ in range(rng.randrange(3))),
        shapes_refused=rng.randrange(100),
        refused=tuple(RefusedShape(_maybe(rng, name), "no table") for name in rng.sample(NAMES, rng.randrange(3))),
    )


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
    return SourceStatus(name, *lsns, len(holders), stalled, since, holders, retired_by)


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
    )


def _lsn(rng: Random) -> int:
    return rng.randrange(2**64)


def _time(rng: Random) -> int:
    return rng.randrange(1_700_000_000_000, 1_900_000_000_000)


def _maybe(rng: Random, value: _T) -> _T | None:
    return value if rng.random() < 0.8 else None
