"""``program_findings``: findings from the document of a single program, with remedies.

The page and ``flushtracker status`` show them. Ages are as of the document, by the program's clock.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from flushtracker.config.units import seconds_text
from flushtracker.errors import StatusError, listed
from flushtracker.status.capture_status import CaptureStatus, EndedShape
from flushtracker.status.finding import BATCH_MS, RECORDS_BEHIND, WRONG, Finding, Kind
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.serve_status import ServeStatus
from flushtracker.status.shapes_remedy import shapes_command
from flushtracker.status.sink_status import SinkShape, SinkStatus
from flushtracker.status.snapshot_status import SnapshotStatus
from flushtracker.status.write_status import WriteStatus, WrittenSource

STALLED_MS: Final = 900_000
"""Snapshots report progress every few seconds, and a failed one is retried after seconds."""
_LONG_BATCH: Final = (
    "see their log and Spark's page: if no task of the batch advances, it hangs; stop the writers' job and start it "
    "again, it continues from its checkpoint"
)
MOST_ERRORS: Final = 0.05
"""The share of errors among the answers above which it is reported: clients retry a request that got a 503."""
_NAMED: Final = 3
_HOLDS_MS: Final = 30_000
"""A consumer group that keeps up commits more often."""


def program_findings(status: ProgramStatus, config_arguments: Sequence[str] = ()) -> Iterator[Finding]:
    """The findings of one document; there are none here for the tracking job.

    ``config_arguments`` name capture's configuration for the commands in remedies, if it is not the default one.
    """
    if isinstance(status, CaptureStatus):
        yield from _ended(status, config_arguments)
        yield from _waiting(status)
    elif isinstance(status, WriteStatus):
        yield from _writing(status)
        for source in status.sources:
            yield from _gaps(source)
        yield from _upkeep(status)
        if status.snapshots is not None:
            yield from _snapshots(status.snapshots)
    elif isinstance(status, SnapshotStatus):
        yield from _snapshots(status)
    elif isinstance(status, ServeStatus):
        yield from _serving(status)
    elif isinstance(status, SinkStatus):
        yield from _feeding(status, config_arguments)


def _ended(status: CaptureStatus, config_arguments: Sequence[str]) -> Iterator[Finding]:
    """Shapes that are defined and get no changes: ended, evicted or refused; each with the first reason."""
    ended = [each for each in status.ended if each.evicted_at_ms is None]
    if ended:
        text = _with_reason(ended)
        remedy = "remove the cause that the reason names, in the database or in the definition, and only then: "
        remedy += f"{_resync(ended, config_arguments)}; or take it out of the shapes file"
        yield Finding("capture", "shapes_ended", text, remedy, is_failure=True, exit_code=WRONG)
    evicted = [each for each in status.ended if each.evicted_at_ms is not None]
    if evicted:
        text = _with_reason(evicted, "evicted")
        command = _resync(evicted, config_arguments)
        remedy = f"find out why its writer made no progress, and once it works: {command}; or take it out of the "
        yield Finding("capture", "shapes_evicted", text, f"{remedy}shapes file", is_failure=True, exit_code=WRONG)
    if status.shapes_refused:
        count = "an entry" if status.shapes_refused == 1 else f"{status.shapes_refused:,} entries"
        reason = f": {status.refused[0].reason}" if status.refused else ""
        remedy = "correct the shapes file: flushtracker check lists what is wrong with it"
        text = f"capture refuses {count} of its shapes file{reason}"
        yield Finding("capture", "shapes_refused", text, remedy, exit_code=WRONG)


def _waiting(status: CaptureStatus) -> Iterator[Finding]:
    """Shapes that are defined but not added yet. With a statement, they wait for someone to run it."""
    for each in sorted(status.waiting, key=lambda found: found.statement is None):
        names = listed(each.shape_ids, _NAMED) if each.count <= _NAMED else f"{each.count:,} shapes"
        text = f"not added yet: {names}, on table {each.table}: {each.reason}"
        if each.statement is not None:
            yield Finding("capture", "shapes_waiting", text, f"run: {each.statement}", exit_code=WRONG)
        else:
            remedy = "see that reason; capture adds them by itself once it does not apply any more"
            yield Finding("capture", "shapes_waiting", text, remedy)


def _with_reason(shapes: Sequence[EndedShape], how: str = "ended") -> str:
    first, names = shapes[0], listed([each.shape_id for each in shapes], _NAMED)
    # Some reasons have the shape as their subject.
    is_named = first.reason.startswith(f"shape {first.shape_id!r}")
    reason = first.reason if is_named else f"{first.shape_id}: {first.reason}"
    was, were = ("has", "have") if how == "ended" else ("was", "were")
    return f"a shape {was} {how}: {reason}" if len(shapes) == 1 else f"shapes {were} {how}, {names}; {reason}"


def _resync(shapes: Sequence[EndedShape], config_arguments: Sequence[str]) -> str:
    """The command to resync them, complete if there are few."""
    command = shapes_command("resync", config_arguments, [each.shape_id for each in shapes[:_NAMED]])
    return f"{command} …" if len(shapes) > _NAMED else command


def _writing(status: WriteStatus) -> Iterator[Finding]:
    running_ms = _age_ms(status.batch_running_since_ms, status.at_ms)
    batch_ms = _age_ms(status.batch_at_ms, status.at_ms)
    behind = status.records_behind or 0
    if not status.is_ready:
        text = f"the writers' job is starting: it has not completed a batch yet{_last_failure(status)}"
        yield _stuck("writers_not_ready", text, "wait, or see its log")
    elif running_ms > BATCH_MS:
        batch = "a batch" if status.batch_id is None else f"batch {status.batch_id + 1}"
        text = f"{batch} of the writers has run for {seconds_text(running_ms / 1000)}{_last_failure(status)}"
        yield _stuck("writers_batch_long", text, _LONG_BATCH)
    elif behind >= RECORDS_BEHIND or (behind and batch_ms > BATCH_MS):
        batch = f"batch {status.batch_id} of the writers ended {seconds_text(batch_ms / 1000)} ago"
        text = f"{batch}, and {behind:,} records of their topics are not read yet{_last_failure(status)}"
        remedy = "if the number grows, the writers are too slow or hang: see their log"
        yield Finding("others", "writers_behind", text, remedy, holds_shapes=True)


def _serving(status: ServeStatus) -> Iterator[Finding]:
    reason = status.not_ready_because
    if reason is not None:
        text = f"the HTTP server answers no request for a shape: {reason}"
        remedy = "see that reason: the storage, or storage in its configuration; it goes on by itself"
        code = StatusError.exit_code
        yield Finding("others", "serve_not_ready", text, remedy, is_failure=True, exit_code=code)
    elif status.recent_errors > MOST_ERRORS * status.recent_answers:
        errors = f"{status.recent_errors:,} of its {status.recent_answers:,} answers in the last minute"
        problem = "" if status.problem is None else f"; its last look at the tables failed: {status.problem}"
        remedy = "see its log; shapes may wait for a snapshot, or more clients begin at once than it can read for"
        yield Finding("others", "serve_errors", f"the HTTP server refused {errors}{problem}", remedy)
    if status.tail is not None and status.tail.problem is not None:
        text = f"clients of the HTTP server get changes from the log alone: {status.tail.problem}"
        remedy = "see that reason: the brokers, or kafka in its configuration; it goes on by itself"
        yield Finding("others", "serve_tail", text, remedy)


def _feeding(status: SinkStatus, config_arguments: Sequence[str]) -> Iterator[Finding]:
    held = 0
    for shape in status.shapes:
        found = list(_feeding_shape(status, shape, config_arguments))
        yield from found
        held += bool(found)
    if held and held == len(status.shapes) < status.shape_count:
        text = f"the {status.shape_count - held:,} other shapes of the feeder of Kafka sinks may be held, too"
        yield Finding("others", "sink_waits", text, "they are listed once these are not held any more; see its log")


def _feeding_shape(status: SinkStatus, shape: SinkShape, config_arguments: Sequence[str]) -> Iterator[Finding]:
    if shape.problem is not None:
        text = f"shape {shape.shape_id} is set aside, and holds the slot: {shape.problem}"
        remedy = "remove the cause, and start the feeder of Kafka sinks again; or change the shape's definition"
        yield Finding("others", "sink_lost", text, remedy, is_failure=True, exit_code=WRONG)
    for each in shape.groups:
        held_ms = _age_ms(each.holds_since_ms, status.at_ms)
        if each.lost_partitions:
            text = f"records of topic {shape.topic} were deleted before the group {each.group} had read them, so "
            text += f"shape {shape.shape_id} is never flushed past them"
            command = shapes_command("resync", config_arguments, [shape.shape_id])
            remedy = f"give the shape another topic in sink.topics, and begin it again: {command}"
            yield Finding("others", "sink_lost", text, remedy, is_failure=True, exit_code=WRONG)
        elif held_ms > _HOLDS_MS and shape.problem is None:
            text = f"shape {shape.shape_id} waits for the consumer group {each.group}, which has not committed for "
            text += f"{seconds_text(held_ms / 1000)} and has {each.unread:,} records of topic {shape.topic} to read"
            remedy = "start the sink that reads as that group, or see its log; or take the group out of sink.topics"
            yield Finding("others", "sink_waits", text, remedy)


def _stuck(kind: Kind, text: str, remedy: str) -> Finding:
    code = StatusError.exit_code
    return Finding("others", kind, text, remedy, holds_shapes=True, is_failure=True, exit_code=code)


def _last_failure(status: WriteStatus) -> str:
    failure = status.failure
    if failure is None or failure.at_ms <= (status.batch_at_ms or 0):
        return ""
    return f"; {seconds_text(_age_ms(failure.at_ms, status.at_ms) / 1000)} ago it met: {failure.text}"


def _gaps(source: WrittenSource) -> Iterator[Finding]:
    if not source.gap_count:
        return
    names = [note.shape_id for note in source.gaps]
    which = f"{listed(names, _NAMED)}, {source.gap_count} in all" if source.gap_count > len(names) else listed(names)
    yield Finding(
        "others",
        "writers_gap",
        f"changes are missing, so the writers write nothing more of {which}",
        "restart capture, which sends again what is not confirmed",
        holds_shapes=True,
        is_failure=True,
        exit_code=WRONG,
    )


def _upkeep(status: WriteStatus) -> Iterator[Finding]:
    failing_since_ms = status.upkeep.failing_since_ms
    if failing_since_ms is not None:
        age = seconds_text(_age_ms(failing_since_ms, status.at_ms) / 1000)
        text = f"upkeep of the shape log has failed for {age}: {status.upkeep.error}"
        remedy = "see that reason; meanwhile nothing is lost, but readers get slower, and nothing is deleted or folded"
        yield Finding("others", "upkeep_failing", text, remedy)


def _snapshots(status: SnapshotStatus) -> Iterator[Finding]:
    stalled_ms = status.stalled_ms(status.at_ms)
    if status.server_error is not None:
        text = f"no snapshots are taken: {status.server_error}"
        yield Finding("others", "snapshots_blocked", text, "see that reason; it is tried again")
    elif stalled_ms > STALLED_MS:
        doing = "looking for shapes" if status.attempt is None else f"reading {status.attempt.table}"
        text = f"the snapshots have made no progress for {seconds_text(stalled_ms / 1000)}, while {doing}"
        remedy = "see pg_stat_activity for what it waits for, and the job's log"
        yield Finding("others", "snapshots_stuck", text, remedy)
    if status.failed_shapes:
        count = f"{status.failed_shapes:,} shape{'s have' if status.failed_shapes > 1 else ' has'} no snapshot"
        first = next(iter(status.failures), None)
        text = count if first is None else f"{count}: {first.shape_id} has failed {first.tries} times: {first.reason}"
        code = WRONG if any(_age_ms(each.since_ms, status.at_ms) > STALLED_MS for each in status.failures) else 0
        remedy = "see those reasons in the job's log; each is tried again"
        yield Finding("others", "snapshots_failing", text, remedy, exit_code=code)


def _age_ms(since_ms: int | None, at_ms: int) -> int:
    return 0 if since_ms is None else max(0, at_ms - since_ms)
