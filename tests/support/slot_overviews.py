"""Overviews of a slot as one would find them, for what judges and prints them."""

from datetime import datetime, timezone
from typing import Any, Final

from msgspec.structs import replace

from flushtracker.errors import PostgresUnavailableError, SinkError, StatusError
from flushtracker.operate.status.overview import Overview
from flushtracker.operate.status.timed_call import CallResult
from flushtracker.status.capture_status import SlotStatus
from flushtracker.status.job_status import JobStatus, SourceStatus
from flushtracker.status.upgrade_facts import UpgradeFacts
from flushtracker.tracking.acks.ack_reader import Ack
from tests.support.status_pages import ACK, HELD, NOW_MS, SEEN, SOURCE, job_status

URL: Final = "http://127.0.0.1:9464"
SERVER: Final = "PostgreSQL at db port 5432, database postgres"
SLOT: Final = SlotStatus(
    name="shapes",
    at_ms=NOW_MS,
    is_active=True,
    wal_status="reserved",
    written_lsn=SEEN + 100,
    confirmed_lsn=ACK + 1,
    retained_bytes=20_800_000,
    safe_wal_bytes=3_900_000_000,
)
FACTS: Final = UpgradeFacts(17, False, ACK + 1, 0, 0, 1, (), ACK + 1)  # noqa: FBT003  a field
"""All that this server has written is confirmed, and its slot is sealed."""
NO_SERVER: Final = PostgresUnavailableError(f"{SERVER} cannot be reached: Connection refused")
NO_JOB: Final = StatusError(f"job {URL} does not answer (connection refused)")
NO_TABLE: Final = SinkError("ack table data/acks cannot be read: permission denied")


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


ROW: Final = Ack(3, ACK, SEEN, 1, "users-eu", at(NOW_MS - 160_000), at(NOW_MS - 156_000))


def overview(
    *,
    slot: SlotStatus | PostgresUnavailableError | None = SLOT,
    job: JobStatus | SourceStatus | StatusError | None = HELD,
    row: Ack | SinkError | None = ROW,
) -> Overview:
    """What each of the three said, or why it said nothing; ``job=None``: no job was asked."""
    status = job_status(job) if isinstance(job, SourceStatus) else job
    return Overview(
        at_ms=NOW_MS,
        slot_name="shapes",
        source=SOURCE,
        server=SERVER,
        slot=answer(slot),
        job_url=URL,
        job=None if status is None else answer(status),
        acks_table="data/acks",
        acks=answer(row),
    )


def answer(found: Any) -> CallResult[Any]:
    """The answer with this value or error."""
    if isinstance(found, Exception):
        return CallResult(NOW_MS, error=found)  # type: ignore[arg-type]  # all are ours
    return CallResult(NOW_MS, found)


def slot(**changes: Any) -> SlotStatus:
    """The slot with other values."""
    return replace(SLOT, **changes)


def source(**changes: Any) -> SourceStatus:
    """The source that is held, with other values."""
    return replace(HELD, **changes)
