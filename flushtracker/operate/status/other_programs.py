"""Findings and lines about the programs other than the tracking job and capture."""

from collections.abc import Iterator, Sequence
from typing import Final

from flushtracker.config.units import bytes_text, seconds_text
from flushtracker.errors import StatusError, listed
from flushtracker.operate.status.overview import Overview
from flushtracker.status.document import replace
from flushtracker.status.finding import Finding
from flushtracker.status.program_findings import program_findings
from flushtracker.status.serve_status import ServeStatus
from flushtracker.status.sink_status import SinkStatus
from flushtracker.status.snapshot_status import SnapshotStatus
from flushtracker.status.write_status import WriteStatus, WrittenSource
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.names import LOG_WRITER

_NAMES: Final = {
    "write": "the writers' job",
    "snapshot": "the snapshots' job",
    "serve": "the HTTP server",
    "sink": "the feeder of Kafka sinks",
}


def other_findings(overview: Overview) -> Iterator[Finding]:
    """Findings about these programs; an unresponsive one counts only if the tracking job is known to be another."""
    for url, answer in overview.others:
        if answer.error is not None:
            who, commands = _silent(overview)
            remedy = silent_remedy(commands)
            yield Finding(
                "others",
                "program_silent",
                f"{who} {answer.error}",
                remedy,
                StatusError.exit_code,
                holds_shapes="write" in commands,
            )
        elif answer.value is not None:
            for each in program_findings(answer.value):
                yield replace(each, text=f"{each.text} ({url})")


def snapshot_findings(overview: Overview) -> Iterator[Finding]:
    """A finding if shapes wait for a snapshot and none of the queried programs takes it."""
    found = [answer.value for _, answer in overview.others if answer.value is not None]
    if any(isinstance(status, SnapshotStatus) for status in found):
        return
    for status in found:
        if isinstance(status, WriteStatus) and status.snapshots is None:
            shapes = next((each.shapes for each in status.sources if each.source == overview.source), None)
            if shapes is not None and shapes.without_snapshot_count:
                names = listed(shapes.without_snapshot, others="others")
                text = f"{shapes.without_snapshot_count:,} shapes have no snapshot yet ({names}), and no program that "
                text += "was asked takes any, so they have no rows from before"
                remedy = "run flushtracker snapshot, or set snapshot: auto in the configuration of the writers' job"
                yield Finding("others", "snapshots_not_taken", text, remedy)


def silent_remedy(commands: str) -> str:
    """The remedy for an unresponsive program. Starting one that was fenced would fence its successor."""
    return f"start {commands}, or see its log; if it was fenced, another one runs: correct its address"


def capture_findings(overview: Overview, config_arguments: Sequence[str] = ()) -> Iterator[Finding]:
    """Findings from capture about its shapes. No response is not a failure: its status may be reachable only from its
    host.

    ``config_arguments`` name its configuration in commands.
    """
    if overview.capture is None:
        return
    status, error = overview.capture.value, overview.capture.error
    if status is not None:
        yield from program_findings(status, config_arguments)
    else:
        text = f"capture's status at {error}: whether shapes have ended, or are refused, is not known"
        yield Finding("capture", "capture_silent", text)


def _silent(overview: Overview) -> tuple[str, str]:
    """The kind of an unresponsive program, and its command: whichever has not responded."""
    found = [answer.value for _, answer in overview.others if answer.value is not None]
    known = {status.program for status in found}
    if any(isinstance(status, WriteStatus) and status.snapshots is not None for status in found):
        known.add("snapshot")
    # Most configurations have no Kafka sinks; one that has them has shapes that wait for another writer than the log.
    holders = () if overview.job_source is None else overview.job_source.holders
    if all(holder.writer == LOG_WRITER for holder in holders):
        known.add("sink")
    names = [name for name in _NAMES if name not in known] or ["sink"]
    return " or ".join(_NAMES[name] for name in names), " or ".join(f"flushtracker {name}" for name in names)


def other_lines(overview: Overview) -> Iterator[str]:
    """A line for each of these programs that responds."""
    for _, answer in overview.others:
        if isinstance(answer.value, WriteStatus):
            yield "   ".join(_writing(overview, answer.value))
        elif isinstance(answer.value, SnapshotStatus):
            yield "   ".join(_snapshots(answer.value))
        elif isinstance(answer.value, ServeStatus):
            yield "   ".join(_serving(answer.value))
        elif isinstance(answer.value, SinkStatus):
            yield "   ".join(_feeding(answer.value))


def _writing(overview: Overview, status: WriteStatus) -> Iterator[str]:
    if status.batch_id is None:
        yield "writers: no batch yet"
    else:
        yield f"writers: batch {status.batch_id} ended {_ago(status.batch_at_ms, status.at_ms)}"
    source = next((each for each in status.sources if each.source == overview.source), None)
    if source is not None and source.flushed_lsn is not None:
        yield f"flushed {format_lsn(source.flushed_lsn)}{_behind(overview, source)}"
    yield f"{status.rows_per_s:,} rows/s"
    if status.records_behind:
        yield f"{status.records_behind:,} records behind"
    if source is not None and source.shapes is not None and source.shapes.without_snapshot_count:
        yield f"{source.shapes.without_snapshot_count:,} without snapshot"
    if status.snapshots is not None and status.snapshots.attempt is not None:
        yield from _snapshots(status.snapshots)


def _behind(overview: Overview, source: WrittenSource) -> str:
    """How far the last flush is behind the last commit seen by the tracking job, while something is pending."""
    tracked = overview.job_source
    if tracked is None or tracked.last_seen_lsn is None or not tracked.pending_shapes or source.flushed_lsn is None:
        return ""
    behind = tracked.last_seen_lsn - source.flushed_lsn
    return f", {bytes_text(behind)} behind" if behind > 0 else ""


def _snapshots(status: SnapshotStatus) -> Iterator[str]:
    yield f"snapshots: {sum(source.shapes_left for source in status.sources):,} shapes left"
    attempt = status.attempt
    if attempt is not None:
        yield f"{attempt.table}: {attempt.ranges_done} of {attempt.ranges} parts, {attempt.rows:,} rows"


def _serving(status: ServeStatus) -> Iterator[str]:
    looked = "has not looked at the tables yet"
    if status.looked_at_ms is not None:
        looked = f"looked at the tables {_ago(status.looked_at_ms, status.at_ms)}"
    yield f"serve: {looked}"
    yield f"{status.shapes:,} shapes"
    yield f"{status.waiting_clients:,} clients wait"
    yield f"{status.recent_answers:,} answers in the last minute"
    if status.recent_errors:
        yield f"{status.recent_errors:,} errors"


def _feeding(status: SinkStatus) -> Iterator[str]:
    yield f"sink: {status.shape_count:,} shapes"
    for shape in status.shapes:
        if shape.problem is not None:
            yield f"{shape.shape_id} is set aside"
        if shape.waits_for_snapshot:
            yield f"{shape.shape_id} waits for its snapshot"
        for each in shape.groups:
            if each.holds_since_ms is not None:
                since = seconds_text(max(0, status.at_ms - each.holds_since_ms) / 1000)
                yield f"{shape.shape_id} waits for {each.group}: {each.unread:,} records, since {since}"


def _ago(at_ms: int | None, now_ms: int) -> str:
    return "at an unknown time" if at_ms is None else f"{seconds_text(max(0, now_ms - at_ms) / 1000)} ago"
