"""The state function: how an executor handles one group's part of a micro-batch.

The state of a shape group is a packed ``ShapeGroup``, that of a source's chain a packed ``FragmentChain``. Each also
stores the last report that it emitted, so that a starting driver can rebuild its trackers from the committed state.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

import pandas as pd
from pyspark.sql import types as T  # noqa: N812 (the name that Spark's own documentation gives it)
from pyspark.sql.streaming.state import GroupState

from flushtracker.config.streams import FRAGMENTS
from flushtracker.errors import DecodeError, FlushtrackerError, NewerEventError
from flushtracker.events.stream_events import FlushNotification
from flushtracker.spark.batch_lsns import batch_lsn
from flushtracker.spark.output_frames import output_frame
from flushtracker.spark.workers import ERROR, spare_imports
from flushtracker.tracking.chain_links import ChainLinks
from flushtracker.tracking.fragment_chain import FragmentChain
from flushtracker.tracking.group_report import GroupReport
from flushtracker.tracking.job.rows import Unreadable
from flushtracker.tracking.shape_events import ShapeEvents
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.source_tracker import CHAIN, ChainReport
from flushtracker.tracking.stray_flush import StrayFlush
from flushtracker.wal.log_offset import LogOffset

# The kinds of output row.
REPORT: Final = "report"
DEAD_LETTER: Final = "dead_letter"
REFUSED: Final = "refused"  # how many notifications, also those that are no dead letter because there are too many

_MOST_LETTERS: Final = 1_000
"""At most this many malformed flush notifications of a micro-batch become dead letters, because the driver
holds them.
"""
_MOST_STRAY: Final = 10
"""At most this many stray flushes per group and micro-batch become dead letters."""

OUTPUT_SCHEMA: Final = T.StructType(
    [
        T.StructField("kind", T.StringType()),
        T.StructField("source", T.StringType()),
        T.StructField("shape_group", T.StringType()),
        T.StructField("report", T.StringType()),  # of a group or a chain; for an error, the name of its class
        T.StructField("events", T.LongType()),
        T.StructField("place", T.StringType()),
        T.StructField("reason", T.StringType()),
        T.StructField("value", T.StringType()),
    ]
)
STATE_SCHEMA: Final = T.StructType(
    [
        T.StructField("packed", T.BinaryType()),
        T.StructField("report", T.StringType()),
        T.StructField("shape_groups", T.LongType()),  # the setting that the key was made with
    ]
)


class OutputRow(NamedTuple):
    kind: str
    source: str = ""
    shape_group: str = ""
    report: str | None = None
    events: int = 0
    place: str | None = None
    reason: str | None = None
    value: str | None = None


_Frames = Iterable[pd.DataFrame]


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of all groups. ``last_acks`` has each source's last ack in the ack table when the job started.

    Each group continues from there, or from the ack before the micro-batch, whatever its state. Acknowledged
    transactions need no flush, even if resent, and the flushes of removed shapes may have been deleted. So a group
    forgets what an ack has passed, even if its own shapes are quiet.
    """

    shape_groups: int
    max_pending_transactions: int
    last_acks: dict[str, int] = field(default_factory=dict)

    def start_of(self, source: str) -> LogOffset | None:
        ack_lsn = max(self.last_acks.get(source, -1), batch_lsn(source))
        return None if ack_lsn < 0 else LogOffset.last_of(ack_lsn)


def state_function(settings: GroupSettings) -> Callable[[Any, _Frames, GroupState], Iterator[pd.DataFrame]]:
    """The function for ``applyInPandasWithState``, keyed by ``(source, shape_group)``."""

    def handle(key: tuple[str, str], frames: _Frames, state: GroupState) -> Iterator[pd.DataFrame]:
        spare_imports()
        for rows in filter(None, handle_group(key, frames, state, settings)):
            yield output_frame(rows, OutputRow._fields)

    return handle


def handle_group(
    key: tuple[str, str], frames: _Frames, state: GroupState, settings: GroupSettings
) -> Iterator[list[OutputRow]]:
    """Apply a group's rows to its state; yield the rows of its output."""
    source, shape_group = key
    if not source:
        yield from _handle_unreadable(frames)
        return
    handle = _handle_chain if shape_group == CHAIN else _handle_shapes
    try:
        handled = handle(source, frames, state, settings)
        if handled is None:
            return
        report, events, letters = handled
        rows = [OutputRow(REPORT, source, shape_group, report, events), *letters]
    except FlushtrackerError as error:
        rows = [OutputRow(ERROR, source, shape_group, report=type(error).__name__, reason=str(error))]
    yield rows


_Handled: TypeAlias = tuple[str, int, list[OutputRow]]
"""A report, the number of events, and the rows of dead letters."""


def _handle_shapes(source: str, frames: _Frames, state: GroupState, settings: GroupSettings) -> _Handled | None:
    """Apply events to a shape group; the events counted are its flushes. There may be none: see ``add_deleted_flush``.

    Deleted flushes alone create no state, because any program may delete anything; then the result is ``None``.
    """
    parts: list[ShapeEvents] = []
    for frame in frames:
        parts += map(ShapeEvents.unpack, frame["packed"].tolist())
    events = ShapeEvents.joined(parts)
    if not state.exists and not len(events):
        return None
    start, now_ms = settings.start_of(source), state.getCurrentProcessingTimeMs()
    group = ShapeGroup.unpack(bytes(state.get[0])) if state.exists else ShapeGroup(LogOffset.before_all())
    if start is not None:
        group.complete(start, now_ms=now_ms, max_pending=settings.max_pending_transactions)
    stray = group.apply(events, now_ms=now_ms, max_pending=settings.max_pending_transactions)
    report = group.report()
    gone = events.removed
    removed = GroupReport.from_json(state.get[1]).listed(gone) if gone and state.exists else ()
    state.update((group.pack(), report.to_json(), settings.shape_groups))
    # Removed shapes are reported once, and are not part of the stored report.
    return replace(report, removed=removed).to_json(), events.flushes, _stray_letters(source, stray)


def _stray_letters(source: str, stray: Sequence[StrayFlush]) -> list[OutputRow]:
    """Dead letters for flushes by other writers than the shapes'; if there are too many, the first one has their
    number.
    """
    if not stray:
        return []
    letters = []
    for flush in stray[:_MOST_STRAY]:
        reason = (
            f"shape {flush.shape_id!r} is written by {flush.writer!r}, but {flush.notified_by!r} has notified that it "
            f"is flushed up to {flush.offset}; this moves nothing of what {flush.writer!r} was sent. Unless the shape "
            f"is changing hands at the moment, take it from {flush.notified_by!r}; or set writer: {flush.notified_by} "
            "in the shapes file, and begin the shape again with flushtracker resync"
        )
        text = FlushNotification(source, "flushed", flush.shape_id, flush.offset, flush.notified_by).to_json()
        letters.append(OutputRow(DEAD_LETTER, place=f"source {source}", reason=reason, value=text))
    if len(stray) > _MOST_STRAY:
        more = f"{letters[0].reason} (the first {_MOST_STRAY} of {len(stray)} such shapes)"
        letters[0] = letters[0]._replace(reason=more)
    return [*letters, OutputRow(REFUSED, events=len(letters))]


def _handle_chain(source: str, frames: _Frames, state: GroupState, settings: GroupSettings) -> _Handled:
    """Apply fragments to a source's chain; the events counted are the fragments."""
    if state.exists:
        chain = FragmentChain.unpack(source, bytes(state.get[0]))
    else:
        chain = FragmentChain(source, settings.start_of(source))
    links = ChainLinks.joined([ChainLinks.unpack(packed) for frame in frames for packed in frame["packed"].tolist()])
    chain.extend_or_break(links)
    report = ChainReport(chain.last_seen_offset, chain.gap).to_json()
    state.update((chain.pack(), report, settings.shape_groups))
    return report, len(links), []


def _handle_unreadable(frames: _Frames) -> Iterator[list[OutputRow]]:
    """Turn malformed flush notifications into dead letters, and anything that must stop the job into an error.
    Stateless.
    """
    refused, letters = 0, list[OutputRow]()
    first_error: OutputRow | None = None
    for event in (Unreadable.unpack(packed) for frame in frames for packed in frame["packed"].tolist()):
        error = _error_of(event)
        if error is None:
            refused += 1
            if len(letters) < _MOST_LETTERS:
                letters.append(OutputRow(DEAD_LETTER, place=event.place, reason=event.reason, value=event.text))
        elif first_error is None or str(error.reason) < str(first_error.reason):
            first_error = error
    rows = [*letters, OutputRow(REFUSED, events=refused)]
    yield rows if first_error is None else [*rows, first_error]


def _error_of(event: Unreadable) -> OutputRow | None:
    """The error that stops the job, ``None`` for a malformed flush notification, which can only delay an ack.

    A flush notification of a newer version is valid, and would be lost as a dead letter.
    """
    if event.is_newer:
        return OutputRow(ERROR, report=NewerEventError.__name__, reason=f"{event.place}: {event.reason}")
    if event.stream == FRAGMENTS:
        reason = (
            f"{event.place}: fragment cannot be read: {event.reason}; a transaction may be lost with it, so nothing "
            f"past it is acknowledged"
        )
        return OutputRow(ERROR, report=DecodeError.__name__, reason=reason)
    return None
