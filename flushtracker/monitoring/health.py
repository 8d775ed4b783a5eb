"""``/readyz``: whether a program does its work, and if not, why not."""

from flushtracker.monitoring.program_status import ProgramStatus
from flushtracker.status.job_status import JobStatus


def not_ready_because(status: ProgramStatus) -> str | None:
    """What is still missing, ``None`` for a program that is ready.

    A job whose batch takes long stays ready: what it holds back is for an alert, and a restart would only prolong it.
    """
    if isinstance(status, JobStatus):
        return (
            None if status.is_ready else "the query does not run yet: its state is being read, or its first batch runs"
        )
    if not status.is_connected:
        return "there is no replication connection to PostgreSQL, or the shapes are not read yet"
    if status.slot is None:
        return "the slot has not been read yet"
    return None
