"""The problems in an overview, given the operator's limits; what to do about each, and the exit code.

If there are several, a known problem (1) comes first, then what does not answer: PostgreSQL (7), the job (8), the ack
table (5).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flushtracker.config.units import bytes_text, seconds_text
from flushtracker.errors import PostgresError, SinkError, StatusError
from flushtracker.operate.status.other_programs import (
    capture_problems,
    other_problems,
    silent_remedy,
    snapshot_problems,
)
from flushtracker.operate.status.overview import Overview, acked_at_ms
from flushtracker.status.job_status import Holder
from flushtracker.status.problems import (
    Problem,
    idle_cause,
    long_batch,
    open_transactions,
    records_behind,
    set_aside,
    slot_problems,
)
from flushtracker.status.upgrade_facts import upgrade_problems
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.names import LOG_WRITER

_PRECEDENCE: Final = (1, PostgresError.exit_code, StatusError.exit_code, SinkError.exit_code)
_WRONG: Final = 1
_UNCONFIRMED_MS: Final = 60_000
"""Capture reads the acks each second, and confirms them with its next status update."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator allows; ``None`` for no limit."""

    retained_bytes: int | None = None
    age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """All problems, those of the slot first."""

    problems: tuple[Problem, ...]

    @property
    def exit_code(self) -> int:
        codes = {problem.exit_code for problem in self.problems}
        return next((code for code in _PRECEDENCE if code in codes), 0)

    def explains(self, holder: Holder) -> bool:
        """Whether a problem explains why the shape is pending; one of the writers' job, why one of its own is."""
        of_write = holder.writer == LOG_WRITER
        return any(problem.holds_shapes and (of_write or problem.part != "others") for problem in self.problems)

    @property
    def exceeds_a_limit(self) -> bool:
        return any(problem.part == "limits" for problem in self.problems)


def judge(overview: Overview, limits: Limits, config_arguments: Sequence[str] = ()) -> Verdict:
    """The verdict on one overview; if that is for an upgrade, whether that is safe.

    ``config_arguments`` name the same configuration for the commands in remedies.
    """
    slot_problems = tuple(_slot_problems(overview))
    problems = (
        *_job_problems(overview, limits),
        *_acks_problems(overview),
        *capture_problems(overview, config_arguments),
        *other_problems(overview),
        *snapshot_problems(overview),
        *_exceeded(overview, limits),
        *_causes(overview, limits),
    )
    if not overview.is_for_upgrade:
        return Verdict((*slot_problems, *problems))
    # What is confirmed needs nobody any more: they only explain what is not.
    explained = (replace(problem, exit_code=0) for problem in problems)
    slot, facts = overview.slot.value, overview.upgrade
    found = () if slot is None or facts is None else upgrade_problems(facts, slot)
    return Verdict((*(each for each in slot_problems if each.kind != "slot_inactive"), *explained, *found))


def _slot_problems(overview: Overview) -> Iterator[Problem]:
    slot, error = overview.slot.value, overview.slot.error
    if error is not None:
        yield Problem("postgres", "postgres_silent", str(error), exit_code=PostgresError.exit_code)
        return
    if slot is None:
        yield Problem(
            "postgres",
            "slot_missing",
            f"there is no replication slot {overview.slot_name} on {overview.server}",
            "flushtracker capture --create creates it; if it existed before, the shapes miss what was written since it "
            "was dropped: add --new-epoch, with which all of them begin again",
            PostgresError.exit_code,
        )
        return
    yield from slot_problems(slot)


def _job_problems(overview: Overview, limits: Limits) -> Iterator[Problem]:
    exit_code = StatusError.exit_code
    if overview.job is None:
        yield Problem(
            "job",
            "job_not_asked",
            "the job was not queried: its address is unknown",
            "give its address with --job, or as status.peers in capture's file; the job's own file needs status.listen",
        )
        return
    status, error = overview.job.value, overview.job.error
    if status is None:
        yield Problem("job", "job_silent", str(error), silent_remedy("flushtracker track"), exit_code)
    elif not status.is_ready:
        text = f"job {overview.job_url} is starting: it has not completed a batch yet"
        yield Problem("job", "job_not_ready", text, "wait, or see its log", exit_code)
    elif running := long_batch(status, limits.age_ms):
        yield running
    elif overview.job_source is None:
        subject = f"source {overview.source}" if overview.source else f"slot {overview.slot_name}"
        text = f"job {overview.job_url} has seen nothing of {subject}"
        remedy = "check that capture publishes to the topics that this job reads, and that the address is right"
        yield Problem("job", "job_unaware", text, remedy, exit_code)
    elif gap := set_aside(overview.job_source):
        yield gap
    elif behind := open_transactions(status) or records_behind(status):
        yield behind


def _acks_problems(overview: Overview) -> Iterator[Problem]:
    error, row, slot = overview.acks.error, overview.last_row, overview.slot.value
    if error is not None:
        yield Problem("acks", "acks_unreadable", str(error), exit_code=SinkError.exit_code)
        return
    if row is None or slot is None or slot.confirmed_lsn is None or not slot.is_active:
        return
    if slot.confirmed_lsn <= row.ack_lsn and overview.at_ms - acked_at_ms(row) > _UNCONFIRMED_MS:
        yield Problem(
            "acks",
            "ack_not_confirmed",
            f"capture has confirmed {format_lsn(slot.confirmed_lsn)}, and not the ack {format_lsn(row.ack_lsn)}",
            f"see capture's log: it cannot read the ack table {overview.acks_table}, or is still publishing what was "
            "sent again",
        )


def _exceeded(overview: Overview, limits: Limits) -> Iterator[Problem]:
    slot, waiting_ms = overview.slot.value, overview.waiting_ms
    if slot is not None and limits.retained_bytes is not None and slot.retained_bytes > limits.retained_bytes:
        retained, limit = bytes_text(slot.retained_bytes), bytes_text(limits.retained_bytes)
        text = f"the slot retains {retained}, more than {limit} (--max-retained)"
        yield Problem("limits", "max_retained", text, exit_code=_WRONG)
    if waiting_ms is not None and limits.age_ms is not None and waiting_ms > limits.age_ms:
        waiting, limit = seconds_text(waiting_ms / 1000), seconds_text(limits.age_ms / 1000)
        text = f"the ack has not moved for {waiting}, more than {limit} (--max-age)"
        yield Problem("limits", "max_age", text, exit_code=_WRONG)


def _causes(overview: Overview, limits: Limits) -> Iterator[Problem]:
    """Why an active slot retains much although no shape holds the ack, unless the job's answer is stale."""
    slot, status, source = overview.slot.value, overview.job_status, overview.job_source
    if slot is None or status is None or source is None or source.gap or long_batch(status, limits.age_ms):
        return
    if (cause := idle_cause(slot, source, limits.retained_bytes)) is not None:
        yield cause
