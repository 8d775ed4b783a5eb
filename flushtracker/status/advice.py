"""Advice for each source, from the documents of the job and of capture; the same as in ``flushtracker status``."""

from collections.abc import Iterable, Iterator, Sequence

from flushtracker.status.ack_findings import idle_cause, job_finding, slot_findings
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.finding import Finding, are_holders_true
from flushtracker.status.job_status import JobStatus, SourceStatus
from flushtracker.status.program_findings import program_findings
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.shapes_remedy import shapes_remedy
from flushtracker.status.stall import is_waiting_long
from flushtracker.status.write_status import WriteStatus
from flushtracker.wal.names import LOG_WRITER


def advice(statuses: Iterable[ProgramStatus]) -> dict[str, list[Finding]]:
    """The findings by source; the name is empty for a capture that does not know its source yet.

    The documents must be current. One program's document is enough for its own findings, but shapes are judged only by
    both together.
    """
    jobs, captures, writing = list[JobStatus](), dict[str, CaptureStatus](), list[WriteStatus]()
    for status in statuses:
        if isinstance(status, JobStatus):
            jobs.append(status)
        elif isinstance(status, CaptureStatus):
            captures[status.source or ""] = status
        elif isinstance(status, WriteStatus):
            writing.append(status)
    job = jobs[0] if jobs and jobs[0].is_ready else None
    sources = {} if job is None else {source.source: source for source in job.sources if source.retired_by is None}
    names = dict.fromkeys([*sources, *captures])
    found = {name: list(_advice(job, sources.get(name), captures.get(name), writing)) for name in names}
    return {name: each for name, each in found.items() if each}


def _advice(
    job: JobStatus | None, source: SourceStatus | None, capture: CaptureStatus | None, writing: Sequence[WriteStatus]
) -> Iterator[Finding]:
    slot = None if capture is None else capture.slot
    busy = None if job is None else job_finding(job, source)
    is_stale = busy is not None and busy.kind == "batch_long"
    idle = None if slot is None or source is None or is_stale else idle_cause(slot, source)
    findings = [*(() if slot is None else slot_findings(slot)), *filter(None, (busy, idle))]
    if job is not None and source is not None and slot is not None:
        # The writers' job's own document explains why its shapes wait.
        of_write = any(holder.writer == LOG_WRITER for holder in source.holders[:1])
        is_explained = of_write and any(each.holds_shapes for status in writing for each in program_findings(status))
        is_judged = is_waiting_long(source, job.at_ms) and are_holders_true(findings) and not is_explained
        working = "the writers' job works" if writing else ""
        remedy = shapes_remedy(source, job, slot.retained_bytes, working=working)
        if is_judged and remedy is not None:
            yield Finding("job", "shapes_held", "the shapes that hold the ack make no progress", remedy)
    yield from (each for each in findings if each.remedy)
