"""The sources that a document is about, for the labels of its metrics."""

from collections.abc import Iterable

from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.serve_status import ServeStatus
from flushtracker.status.sink_status import SinkStatus
from flushtracker.wal.source_name import SourceName, successors


def current(names: Iterable[str]) -> set[str]:
    """The sources among these that are not retired by another one.

    >>> sorted(current(["7/1/s", "7/2/s", "8/1/s", "mine"]))
    ['7/2/s', '8/1/s', 'mine']
    """
    found = set(names)
    return found - successors(found).keys()


def unretired_sources(status: ProgramStatus) -> set[str]:
    """The sources of a program that are not retired by another one."""
    if isinstance(status, CaptureStatus | ServeStatus | SinkStatus):
        return set() if status.source is None else {status.source}
    if isinstance(status, JobStatus):
        return {source.source for source in status.sources if source.retired_by is None}
    return current(source.source for source in status.sources)


def only_source(status: ProgramStatus) -> str | None:
    """The source of a program, ``None`` while it has several or none."""
    found = unretired_sources(status)
    return found.pop() if len(found) == 1 else None


def slot_of(source: str) -> str | None:
    """The slot in a source's name; ``None`` for a name chosen by another producer.

    >>> slot_of("7301/1/shapes"), slot_of("mine")
    ('shapes', None)
    """
    name = SourceName.parse(source)
    return None if name is None else name.slot
