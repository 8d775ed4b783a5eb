"""The figures of a report on a source's acks: which shapes held the ack back, for how long, and how far it advanced.

Only the times at which acks were written are known. Between two acks, the shape that blocked the first may have
flushed, and others may have held the ack back. Only the job knows the current state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timezone
from pathlib import Path

from flushtracker.errors import DecodeError
from flushtracker.event_files import read_lines, stream_files
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.tracking.acks.ack_reader import Ack, AckHistory


@dataclass(frozen=True, slots=True)
class HeldBack:
    """How the ack was held back after it was written with this blocking shape.

    ``acks`` counts the acks with this shape, ``batches`` and ``seconds`` how long the ack did not move after them.
    ``max_lag_bytes`` is the most WAL that was waiting.
    """

    shape_id: str
    acks: int = 0
    batches: int = 0
    seconds: float = 0.0
    max_lag_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """``last_commit_lsn`` is what the acks must reach: the last known commit, published or seen at the last ack."""

    history: AckHistory
    held_back: tuple[HeldBack, ...]
    last_commit_lsn: int

    @property
    def last_ack(self) -> Ack:
        return self.history.acks[-1]

    @property
    def written_at(self) -> str:
        return f"{self.last_ack.acked_at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"

    @property
    def missing_bytes(self) -> int:
        """How far the last ack is behind the last known commit."""
        return max(self.last_commit_lsn - self.last_ack.ack_lsn, 0)

    @property
    def is_complete(self) -> bool:
        return self.last_ack.ack_lsn >= self.last_commit_lsn


def make_report(history: AckHistory, published_lsn: int | None) -> Report:
    """The report on ``history``, given the last published commit, if known."""
    last_commit_lsn = max(history.acks[-1].last_seen_lsn, -1 if published_lsn is None else published_lsn)
    return Report(history, held_back(history.acks), last_commit_lsn)


def held_back(acks: Sequence[Ack]) -> tuple[HeldBack, ...]:
    """Every shape that held the ack back, the longest first."""
    shapes: dict[str, HeldBack] = {}
    for ack, following in zip(acks, (*acks[1:], acks[-1]), strict=True):
        if ack.blocking_shape is None:
            continue
        before = shapes.get(ack.blocking_shape, HeldBack(ack.blocking_shape))
        shapes[ack.blocking_shape] = HeldBack(
            ack.blocking_shape,
            before.acks + 1,
            # A new checkpoint counts batches from 0 again, so the number in between is unknown.
            before.batches + max(0, following.batch_id - ack.batch_id),
            before.seconds + max(0.0, (following.acked_at - ack.acked_at).total_seconds()),
            max(before.max_lag_bytes, following.last_seen_lsn - ack.ack_lsn),
        )
    return tuple(sorted(shapes.values(), key=lambda shape: (-shape.seconds, -shape.max_lag_bytes, shape.shape_id)))


def last_published_commit(fragments: str, source: str) -> int | None:
    """The LSN of the last commit of ``source`` in a stream of files.

    ``None`` if there is none, or if ``fragments`` is a URI, which this function cannot read. It reads the files from
    the newest backwards, up to one with a commit; after a resend, an older file may have a greater one.

    Raises:
        DecodeError: an event cannot be read.
    """
    if "://" in fragments:
        return None
    for file in reversed(stream_files(Path(fragments))):
        events = [_event(file, number, line) for number, line in enumerate(read_lines(file), start=1)]
        commits = [event.lsn for event in events if event.source == source and event.commit is not None]
        if commits:
            return max(commits)
    return None


def _event(file: Path, number: int, line: str) -> FragmentEvent:
    try:
        return FragmentEvent.from_json(line)
    except DecodeError as error:
        raise DecodeError(f"{file} line {number}: {error}; replay or capture it again") from error


def thinned(acks: Sequence[Ack], limit: int) -> Sequence[Ack]:
    """At most ``limit`` of the acks, evenly spaced, including the first and the last; ``limit`` is at least 2."""
    if len(acks) <= limit:
        return acks
    last = len(acks) - 1
    return [acks[round(index * last / (limit - 1))] for index in range(limit)]
