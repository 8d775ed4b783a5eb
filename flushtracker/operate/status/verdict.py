"""The problems in an overview, given the operator's limits; what to do about each, and the exit code.

If there are several, a known problem (1) comes first, then what does not answer: PostgreSQL (7), the job (8), the ack
table (5).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from flushtracker.config.units import bytes_text, seconds_text
from flushtracker.errors import PostgresError, SinkError, StatusError
from flushtracker.operate.status.overview import Overview, acked_at_ms
from flushtracker.status.capture_status import SlotStatus
from flushtracker.status.job_status import SourceStatus
from flushtracker.wal.lsn import format_lsn

Part: TypeAlias = Literal["postgres", "job", "acks", "limits"]

_PRECEDENCE: Final = (1, PostgresError.exit_code, StatusError.exit_code, SinkError.exit_code)
_WRONG: Final = 1
_UNSOUND: Final = frozenset(
    ["postgres_silent", "slot_missing", "slot_lost", "slot_inactive", "job_not_ready", "batch_long", "job_behind"]
)
"""With one of these problems, what is pending may have been flushed, or will be once that is solved."""
_LARGE_BYTES: Final = 1_000_000_000
"""Without a limit, this much retained WAL is reported with its cause."""
_RECORDS_BEHIND: Final = 10_000
"""A job that keeps up is less than this behind."""
_BATCH_MS: Final = 120_000
"""A normal batch takes less."""
_UNCONFIRMED_MS: Final = 60_000
"""Capture reads the acks each second, and confirms them with its next status update."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator allows; ``None`` for no limit."""

    retained_bytes: int | None = None
    age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: its ``kind`` for programs, its ``text`` for people, and the ``remedy``, if there is one.

    ``exit_code`` is 0 for a problem that explains a figure and is not a failure by itself.
    """

    part: Part
    kind: str
    text: str
    remedy: str | None = None
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """All problems, those of the slot first."""

    problems: tuple[Problem, ...]

    @property
    def exit_code(self) -> int:
        codes = {problem.exit_code for problem in self.problems}
        return next((code for code in _PRECEDENCE if code in codes), 0)

    @property
    def is_sound(self) -> bool:
        """Whether capture runs and the job's answer is current, so that what is pending is really not flushed."""
        return not any(problem.kind in _UNSOUND for problem in self.problems)

    @property
    def exceeds_a_limit(self) -> bool:
        return any(problem.part == "limits" for problem in self.problems)


def judge(overview: Overview, limits: Limits) -> Verdict:
    """The verdict on one overview."""
    return Verdict(
        (
            *_slot_problems(overview),
            *_job_problems(overview, limits),
            *_acks_problems(overview),
            *_exceeded(overview, limits),
            *_causes(overview, limits),
        )
    )


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
            "was dropped: define them again under new ids",
            PostgresError.exit_code,
        )
        return
    if slot.wal_status == "lost":
        yield Problem(
            "postgres",
            "slot_lost",
            "the slot is lost: the server has removed WAL that was not confirmed",
            "drop the slot, start capture with --create --new-epoch, and define the shapes again under new ids; a "
            "larger max_slot_wal_keep_size helps",
            _WRONG,
        )
        return
    if slot.wal_status == "unreserved":
        yield Problem(
            "postgres",
            "slot_unreserved",
            "the next checkpoint may remove WAL that the slot needs, and then the slot is lost",
            "raise max_slot_wal_keep_size now (ALTER SYSTEM, SELECT pg_reload_conf()), then free what holds the ack",
            _WRONG,
        )
    if not slot.is_active:
        yield Problem(
            "postgres",
            "slot_inactive",
            "the slot is not being read: capture is not running, or not connected",
            "start flushtracker capture; if it runs, its log says why it is not connected",
            _WRONG,
        )


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
        remedy = "start flushtracker track, or see its log; or correct its address"
        yield Problem("job", "job_silent", str(error), remedy, exit_code)
    elif not status.is_ready:
        text = f"job {overview.job_url} is starting: it has not completed a batch yet"
        yield Problem("job", "job_not_ready", text, "wait, or see its log", exit_code)
    elif running := _long_batch(overview, limits):
        yield running
    elif overview.job_source is None:
        subject = f"source {overview.source}" if overview.source else f"slot {overview.slot_name}"
        text = f"job {overview.job_url} has seen nothing of {subject}"
        remedy = "check that capture publishes to the topics that this job reads, and that the address is right"
        yield Problem("job", "job_unaware", text, remedy, exit_code)
    elif (behind := status.records_behind or 0) and (
        behind >= _RECORDS_BEHIND or (overview.age_ms(status.batch_at_ms) or 0) > _BATCH_MS
    ):
        age_ms = overview.age_ms(status.batch_at_ms)
        last = "" if age_ms is None else f"; its last batch ended {seconds_text(age_ms / 1000)} ago"
        text = f"the job has not read {behind:,} records of its topics yet{last}"
        yield Problem("job", "job_behind", text, "if the number grows, the job is too slow or hangs: see its log")


def _long_batch(overview: Overview, limits: Limits) -> Problem | None:
    """A problem if the current batch has run for so long that the job's answer is stale."""
    status = overview.job_status
    running_ms = None if status is None else overview.age_ms(status.batch_running_since_ms)
    limit_ms = _BATCH_MS if limits.age_ms is None else limits.age_ms
    if running_ms is None or running_ms <= min(limit_ms, _BATCH_MS):
        return None
    return Problem(
        "job",
        "batch_long",
        f"a batch has run for {seconds_text(running_ms / 1000)}; the job's answer is from before it",
        "see the job's log and Spark's page: if no task of the batch advances, it hangs; stop the job and start it "
        "again, it continues from its checkpoint",
        StatusError.exit_code if running_ms > limit_ms else 0,
    )


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
    slot, source = overview.slot.value, overview.job_source
    if slot is None or not slot.is_active or source is None or source.pending_shapes:
        return
    if _long_batch(overview, limits):
        return
    if slot.retained_bytes > (_LARGE_BYTES if limits.retained_bytes is None else limits.retained_bytes):
        yield _idle_cause(slot, source)


def _idle_cause(slot: SlotStatus, source: SourceStatus) -> Problem:
    confirmed_lsn = slot.written_lsn if slot.confirmed_lsn is None else slot.confirmed_lsn
    unconfirmed = slot.written_lsn - confirmed_lsn
    if 2 * unconfirmed < slot.retained_bytes:
        return Problem(
            "postgres",
            "restart_lsn_held",
            "no shape holds it: a transaction that runs for long, or is prepared, keeps the slot's restart_lsn",
            "end it: SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY "
            "xact_start; SELECT * FROM pg_prepared_xacts",
        )
    seen = "nothing" if source.last_seen_lsn is None else format_lsn(source.last_seen_lsn)
    return Problem(
        "postgres",
        "nothing_to_confirm",
        f"no shape holds it: the job has seen {seen} as the last commit, and the server has written "
        f"{bytes_text(unconfirmed)} since what is confirmed",
        "if other databases write it, set intervals.heartbeat in capture's configuration; else capture or the job is "
        "behind: see their logs",
    )
