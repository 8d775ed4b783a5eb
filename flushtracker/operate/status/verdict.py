"""The findings in an overview, given the operator's limits, with remedies and the exit code.

With several findings, those to act on (1) take precedence, then what does not respond: PostgreSQL (7), the job (8), the
ack table (5).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flushtracker.config.units import bytes_text, seconds_text
from flushtracker.errors import PostgresError, SinkError, StatusError
from flushtracker.operate.status.other_programs import (
    capture_findings,
    other_findings,
    silent_remedy,
    snapshot_findings,
)
from flushtracker.operate.status.overview import Overview, milliseconds
from flushtracker.status.ack_findings import idle_cause, job_finding, long_batch, slot_findings
from flushtracker.status.document import replace
from flushtracker.status.finding import WRONG, Finding
from flushtracker.status.job_status import Holder
from flushtracker.status.upgrade_facts import upgrade_findings
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.names import LOG_WRITER

_PRECEDENCE: Final = (WRONG, PostgresError.exit_code, StatusError.exit_code, SinkError.exit_code)
_UNCONFIRMED_MS: Final = 60_000
"""Capture reads the acks each second, and confirms them with its next status update."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The operator's limits; ``None`` for no limit."""

    retained_bytes: int | None = None
    age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings, the slot's first."""

    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        codes = {each.exit_code for each in self.findings}
        return next((code for code in _PRECEDENCE if code in codes), 0)

    def explains(self, holder: Holder) -> bool:
        """Whether a finding explains why the shape is pending; findings about the writers' job explain only its own
        shapes.
        """
        of_write = holder.writer == LOG_WRITER
        return any(each.holds_shapes and (of_write or each.part != "others") for each in self.findings)

    @property
    def exceeds_a_limit(self) -> bool:
        return any(each.part == "limits" for each in self.findings)


def judge(overview: Overview, limits: Limits, config_arguments: Sequence[str] = ()) -> Verdict:
    """The verdict on one overview; for an upgrade, whether it is safe.

    ``config_arguments`` name the same configuration in the commands of remedies.
    """
    of_slot = tuple(_slot_findings(overview))
    found = (
        *_job_findings(overview, limits),
        *_acks_findings(overview),
        *capture_findings(overview, config_arguments),
        *other_findings(overview),
        *snapshot_findings(overview),
        *_exceeded(overview, limits),
        *_causes(overview, limits),
    )
    if not overview.is_for_upgrade:
        return Verdict((*of_slot, *found))
    # Nothing needs to be done for what is confirmed: these findings only explain the rest.
    explained = (replace(each, exit_code=0) for each in found)
    slot, facts = overview.slot.value, overview.upgrade
    missing = () if slot is None or facts is None else upgrade_findings(facts, slot)
    return Verdict((*(each for each in of_slot if each.kind != "slot_inactive"), *explained, *missing))


def _slot_findings(overview: Overview) -> Iterator[Finding]:
    slot, error = overview.slot.value, overview.slot.error
    if error is not None:
        yield Finding("postgres", "postgres_silent", str(error), exit_code=PostgresError.exit_code)
        return
    if slot is None:
        yield Finding(
            "postgres",
            "slot_missing",
            f"there is no replication slot {overview.slot_name} on {overview.server}",
            "flushtracker capture --create creates it; if it existed before, the shapes miss what was written since it "
            "was dropped: add --new-epoch, with which all of them begin again",
            PostgresError.exit_code,
        )
        return
    yield from slot_findings(slot)


def _job_findings(overview: Overview, limits: Limits) -> Iterator[Finding]:
    exit_code = StatusError.exit_code
    if overview.job is None:
        yield Finding(
            "job",
            "job_not_asked",
            "the job was not queried: its address is unknown",
            "give its address with --job, or let the configuration have status and track",
        )
        return
    status, error = overview.job.value, overview.job.error
    if status is None:
        yield Finding("job", "job_silent", str(error), silent_remedy("flushtracker track"), exit_code)
    elif not status.is_ready:
        text = f"job {overview.job_url} is starting: it has not completed a batch yet"
        yield Finding("job", "job_not_ready", text, "wait, or see its log", exit_code)
    elif overview.job_source is None and not long_batch(status, limits.age_ms):
        subject = f"source {overview.source}" if overview.source else f"slot {overview.slot_name}"
        text = f"job {overview.job_url} has seen nothing of {subject}"
        remedy = "check that capture publishes to the topics that this job reads, and that the address is right"
        yield Finding("job", "job_unaware", text, remedy, exit_code)
    elif found := job_finding(status, overview.job_source, limits.age_ms):
        yield found


def _acks_findings(overview: Overview) -> Iterator[Finding]:
    error, row, slot = overview.acks.error, overview.last_row, overview.slot.value
    if error is not None:
        yield Finding("acks", "acks_unreadable", str(error), exit_code=SinkError.exit_code)
        return
    if row is None or slot is None or slot.confirmed_lsn is None or not slot.is_active:
        return
    if slot.confirmed_lsn <= row.ack_lsn and overview.at_ms - milliseconds(row.acked_at) > _UNCONFIRMED_MS:
        yield Finding(
            "acks",
            "ack_not_confirmed",
            f"capture has confirmed {format_lsn(slot.confirmed_lsn)}, and not the ack {format_lsn(row.ack_lsn)}",
            f"see capture's log: it cannot read the ack table {overview.acks_table}, or is still publishing what was "
            "sent again",
        )


def _exceeded(overview: Overview, limits: Limits) -> Iterator[Finding]:
    slot, waiting_ms = overview.slot.value, overview.waiting_ms
    if slot is not None and limits.retained_bytes is not None and slot.retained_bytes > limits.retained_bytes:
        retained, limit = bytes_text(slot.retained_bytes), bytes_text(limits.retained_bytes)
        text = f"the slot retains {retained}, more than {limit} (--max-retained)"
        yield Finding("limits", "max_retained", text, exit_code=WRONG)
    if waiting_ms is not None and limits.age_ms is not None and waiting_ms > limits.age_ms:
        waiting, limit = seconds_text(waiting_ms / 1000), seconds_text(limits.age_ms / 1000)
        text = f"the ack has not moved for {waiting}, more than {limit} (--max-age)"
        yield Finding("limits", "max_age", text, exit_code=WRONG)


def _causes(overview: Overview, limits: Limits) -> Iterator[Finding]:
    """Why an active slot retains much although no shape holds the ack, unless the job's answer is stale."""
    slot, status, source = overview.slot.value, overview.job_status, overview.job_source
    if slot is None or status is None or source is None or long_batch(status, limits.age_ms):
        return
    if (cause := idle_cause(slot, source, limits.retained_bytes)) is not None:
        yield cause
