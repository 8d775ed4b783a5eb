"""Random documents of running programs, with names that nobody would choose."""

from collections.abc import Sequence
from functools import cache
from random import Random
from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from msgspec import structs

from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.document import StatusObject
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus
from flushtracker.status.serve_status import AnswerCount, ServeStatus
from flushtracker.status.sink_status import SinkStatus
from flushtracker.status.snapshot_status import AttemptStatus, ShapeFailure, SnapshotStatus
from flushtracker.status.write_status import WriteStatus

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
_WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost", "new")
_HTTP_STATUSES: Final = (200, 304, 409, 500, 503)


def random_job(rng: Random) -> JobStatus:
    """A job's document; every value that may be unknown sometimes is."""
    return _random(rng, JobStatus)


def random_capture(rng: Random) -> CaptureStatus:
    """A document of capture, likewise."""
    return _random(rng, CaptureStatus)


def random_write(rng: Random) -> WriteStatus:
    """A document of the writers' job, likewise."""
    return _random(rng, WriteStatus)


def random_snapshot(rng: Random) -> SnapshotStatus:
    """A document of the snapshots' job, likewise."""
    return _random(rng, SnapshotStatus)


def random_serve(rng: Random) -> ServeStatus:
    """A document of the HTTP server, likewise."""
    return _random(rng, ServeStatus)


def random_sink(rng: Random) -> SinkStatus:
    """A document of the feeder of Kafka sinks, likewise."""
    return _random(rng, SinkStatus)


def random_failure(rng: Random, shape_id: str) -> ShapeFailure:
    """A failure of this shape."""
    return _random(rng, ShapeFailure, shape_id=shape_id)


def _random(rng: Random, kind: type[_T], **given: Any) -> _T:
    """One of this dataclass, with a value for each field by its name and its type."""
    hints = _hints(kind)  # type: ignore[arg-type]  # any class can be hashed
    if kind is SourceStatus:
        holders = _several(rng, Holder, len(NAMES))
        gap = rng.choice([None, None, "a.jsonl:1: fragment 0/514+0 follows 0/4B0+0"])
        given |= {"holders": holders, "pending_shapes": len(holders), "gap": gap}
        given |= {
            "stalled_shapes": rng.randrange(len(holders) + 1),
            "retired_by": rng.choice([None, None, rng.choice(NAMES)]),
        }
    if kind is SlotStatus:
        safe_bytes = rng.choice([None, rng.randrange(-(10**9), 10**12)])
        given |= {"wal_status": rng.choice([None, *_WAL_STATUSES]), "safe_wal_bytes": safe_bytes}
    if kind is AttemptStatus:
        given |= {"ranges": 100, "ranges_done": rng.randrange(100)}
    return kind(
        **{
            each.name: given[each.name] if each.name in given else _value(rng, each.name, hints[each.name])
            for each in _fields(kind)  # type: ignore[arg-type]  # any class can be hashed
        }
    )


@cache
def _fields(kind: Any) -> Sequence[Any]:
    return structs.fields(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(rng: Random, name: str, hint: Any) -> Any:  # noqa: PLR0911  one for each type
    arguments = get_args(hint)
    if NoneType in arguments:
        (known,) = (each for each in arguments if each is not NoneType)
        return _value(rng, name, known) if rng.random() < 0.8 else None
    if get_origin(hint) is tuple:
        return _several(rng, arguments[0], 3)
    if issubclass(hint, StatusObject):
        return _random(rng, hint)
    if hint is bool:
        return rng.random() < 0.5
    if hint is str:
        return rng.choice(NAMES)
    if name.endswith("_ms") and "batch_ms" not in name:
        return rng.randrange(1_700_000_000_000, 1_900_000_000_000)
    return rng.randrange(2**64 if name.endswith("lsn") or name.startswith("ack_if") else 10**9)


def _several(rng: Random, kind: Any, most: int) -> tuple[Any, ...]:
    """Some of a kind, whose first fields differ."""
    if kind is str:
        return tuple(rng.sample(NAMES, rng.randint(1, most)))
    first = _fields(kind)[0].name
    firsts: list[Any] = [*_HTTP_STATUSES] if kind is AnswerCount else [*NAMES]
    return tuple(_random(rng, kind, **{first: each}) for each in rng.sample(firsts, rng.randint(0, most)))
