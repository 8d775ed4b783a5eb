"""What to do about each source, by the documents of the job and of capture, as ``flushtracker status`` advises, too."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.job_conclusions import conclusions
from flushtracker.status.job_status import JobStatus, SourceStatus
from flushtracker.status.problems import (
    are_holders_true,
    idle_cause,
    long_batch,
    open_transactions,
    records_behind,
    set_aside,
    slot_problems,
)
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.shapes_remedy import shapes_remedy
from flushtracker.status.stall import is_waiting_long
from flushtracker.status.write_status import WriteStatus
from flushtracker.wal.names import LOG_WRITER

SECTIONS: Final[Mapping[str, str]] = {
    "slot_lost": "flushtrackerslotlost",
    "slot_unreserved": "flushtrackerslotunreserved",
    "slot_inactive": "flushtrackercapturedisconnected",
    "batch_long": "what-you-see-and-what-to-do",
    "source_set_aside": "flushtrackergap",
    "job_behind": "what-you-see-and-what-to-do",
    "transaction_open": "what-you-see-and-what-to-do",
    "restart_lsn_held": "the-disk-is-filling",
    "nothing_to_confirm": "the-disk-is-filling",
}
"""By the kind of a problem, the section of the runbook."""
SHAPES_SECTION: Final = "flushtrackerackstuck"


@dataclass(frozen=True, slots=True)
class Advice:
    """A remedy, and the section of the runbook that has more about it."""

    remedy: str
    section: str

    def to_json(self) -> dict[str, str]:
        return {"remedy": self.remedy, "section": self.section}


def advice(statuses: Iterable[ProgramStatus]) -> dict[str, list[Advice]]:
    """Source → what to do; of a capture that does not know its source yet, the name is empty.

    The documents must be current. What one program shows counts also without the other, but shapes are judged only by
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
) -> Iterator[Advice]:
    slot = None if capture is None else capture.slot
    long = None if job is None else long_batch(job)
    gap = None if source is None or long else set_aside(source)
    late = None if job is None or long or gap else open_transactions(job) or records_behind(job)
    idle = None if slot is None or source is None or long or gap else idle_cause(slot, source)
    problems = [*(() if slot is None else slot_problems(slot)), *filter(None, (gap, long, late, idle))]
    if job is not None and source is not None and slot is not None:
        # What the writers' job says of itself explains why its shapes wait.
        of_write = any(holder.writer == LOG_WRITER for holder in source.holders[:1])
        is_explained = of_write and any(each.holds_shapes for status in writing for each in conclusions(status))
        is_judged = is_waiting_long(source, job.at_ms) and are_holders_true(problems) and not is_explained
        working = "the writers' job works" if writing else ""
        remedy = shapes_remedy(source, job, slot.retained_bytes, working=working)
        if is_judged and remedy is not None:
            yield Advice(remedy, SHAPES_SECTION)
    for problem in problems:
        if problem.remedy is not None:
            yield Advice(problem.remedy, SECTIONS[problem.kind])
