"""``Overview``: the answers of PostgreSQL, the tracking job and the ack table about one slot, each with its time."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from flushtracker.operate.status.timed_call import CallResult
from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.job_status import JobStatus, SourceStatus
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.upgrade_facts import UpgradeFacts
from flushtracker.tracking.acks.ack_reader import Ack
from flushtracker.wal.source_name import current_sources


@dataclass(frozen=True, slots=True)
class Overview:
    """One set of answers. ``server``, ``job_url`` and ``acks_table`` name what was queried.

    ``slot`` has no value and no error if the server has no such slot. ``job`` is ``None`` if no job was queried.
    ``acks`` has no value and no error if the table has no ack of the source, or the source is unknown. ``others`` are
    the URLs of all other programs that were queried; unresponsive ones are left out if the job has not responded.
    ``capture`` is the answer of the program whose configuration this is, ``None`` if it serves no status. ``upgrade``
    is set if the query ``is_for_upgrade`` and PostgreSQL has responded.
    """

    at_ms: int
    slot_name: str
    source: str | None
    server: str
    slot: CallResult[SlotStatus]
    job_url: str
    job: CallResult[JobStatus] | None
    acks_table: str
    acks: CallResult[Ack]
    others: tuple[tuple[str, CallResult[ProgramStatus]], ...] = ()
    is_for_upgrade: bool = False
    upgrade: UpgradeFacts | None = None
    capture: CallResult[CaptureStatus] | None = None

    @property
    def job_status(self) -> JobStatus | None:
        return None if self.job is None else self.job.value

    @property
    def job_source(self) -> SourceStatus | None:
        """The source's status in the job's answer, ``None`` if it has none."""
        status = self.job_status
        if status is None or not status.is_ready:
            return None
        return next((source for source in status.sources if source.source == self.source), None)

    @property
    def last_row(self) -> Ack | None:
        """The source's last row in the ack table, true when it was written."""
        return self.acks.value

    @property
    def ack_lsn(self) -> int | None:
        """The ack from the job, else from the table."""
        if self.job_source is not None:
            return self.job_source.ack_lsn
        return None if self.last_row is None else self.last_row.ack_lsn

    def age_ms(self, since_ms: int | None) -> int | None:
        """The time between ``since_ms`` and the job's document, by the job's clock; ``None`` for ``None``."""
        return None if self.job_status is None else self.job_status.age_ms(since_ms)

    @property
    def waiting_ms(self) -> int | None:
        """For how long the ack has not moved while something is pending: 0 if nothing is, ``None`` if unknown.

        The job writes a row whenever the ack moves. So until there is a newer row, the same shapes are still pending,
        even if the job does not respond.
        """
        if self.job_source is not None:
            return self.age_ms(self.job_source.waiting_since_ms) or 0
        row = self.last_row
        return None if row is None or row.pending_shapes == 0 else max(0, self.at_ms - milliseconds(row.acked_at))


def milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def source_of(slot: str, system_id: str | None, names: Iterable[str]) -> str | None:
    """The source among ``names`` that capture currently reads from ``slot``.

    ``system_id`` is the server's, ``None`` if it does not respond. If several servers then have such a slot, the source
    is ambiguous, and the result is ``None``.

    >>> source_of("shapes", "7301", ["7301/1/shapes", "7301/2/shapes", "7301/2/shapes/3", "7302/9/shapes"])
    '7301/2/shapes/3'
    """
    found = current_sources(slot, names)
    if system_id is None and len(found) == 1:
        (system_id,) = found
    return str(found[system_id]) if system_id in found else None
