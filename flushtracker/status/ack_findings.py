"""Findings from the documents of capture and the tracking job, with remedies."""

from collections.abc import Iterator
from typing import Final

from flushtracker.config.units import bytes_text, seconds_text
from flushtracker.errors import StatusError, printable
from flushtracker.status.capture_status import SlotStatus
from flushtracker.status.finding import BATCH_MS, RECORDS_BEHIND, WRONG, Finding
from flushtracker.status.job_status import JobStatus, SourceStatus
from flushtracker.wal.lsn import format_lsn

_LARGE_BYTES: Final = 1_000_000_000
"""Without a configured limit, this much retained WAL is reported with its cause."""
_MB: Final = 1 << 20


def slot_findings(slot: SlotStatus) -> Iterator[Finding]:
    if slot.wal_status == "lost":
        yield Finding(
            "postgres",
            "slot_lost",
            "the slot is lost: the server has removed WAL that was not confirmed",
            "drop the slot, start capture with --create --new-epoch: all shapes begin again, with new snapshots; a "
            "larger max_slot_wal_keep_size helps",
            WRONG,
        )
        return
    if slot.wal_status == "unreserved":
        yield Finding(
            "postgres",
            "slot_unreserved",
            "the next checkpoint may remove WAL that the slot needs, and then the slot is lost",
            "raise max_slot_wal_keep_size now, as far as the disk allows: ALTER SYSTEM SET max_slot_wal_keep_size = "
            f"'{2 * slot.retained_bytes // _MB + 1}MB'; SELECT pg_reload_conf(); then free what holds the ack",
            WRONG,
        )
    if not slot.is_active:
        yield Finding(
            "postgres",
            "slot_inactive",
            "the slot is not being read: capture is not running, or not connected",
            "start flushtracker capture; if it runs, its log says why it is not connected",
            WRONG,
        )


def long_batch(job: JobStatus, limit_ms: int | None = None) -> Finding | None:
    """A finding if the current batch has run for so long that the job's answer is stale; over the limit, a failure."""
    running_ms = job.age_ms(job.batch_running_since_ms)
    limit_ms = BATCH_MS if limit_ms is None else limit_ms
    if running_ms is None or running_ms <= min(limit_ms, BATCH_MS):
        return None
    return Finding(
        "job",
        "batch_long",
        f"a batch has run for {seconds_text(running_ms / 1000)}; the job's answer is from before it",
        "see the job's log and Spark's page: if no task of the batch advances, it hangs; stop the job and start it "
        "again, it continues from its checkpoint",
        StatusError.exit_code if running_ms > limit_ms else 0,
    )


def job_finding(job: JobStatus, source: SourceStatus | None, limit_ms: int | None = None) -> Finding | None:
    """Why the job does not acknowledge what has been flushed; the first of possibly several findings."""
    found = long_batch(job, limit_ms) or (None if source is None else _set_aside(source))
    return found or _open_transactions(job) or _records_behind(job)


def _records_behind(job: JobStatus) -> Finding | None:
    """A finding if the job has many records of its topics to read."""
    behind, age_ms = job.records_behind or 0, job.age_ms(job.batch_at_ms)
    if not behind or (behind < RECORDS_BEHIND and (age_ms or 0) <= BATCH_MS):
        return None
    last = "" if age_ms is None else f"; its last batch ended {seconds_text(age_ms / 1000)} ago"
    text = f"the job has not read {behind:,} records of its topics yet{last}"
    return Finding("job", "job_behind", text, "if the number grows, the job is too slow or hangs: see its log")


def _set_aside(source: SourceStatus) -> Finding | None:
    """A finding if fragments of the source are missing, so that the job acknowledges nothing more of it."""
    if source.gap is None:
        return None
    text = f"the job acknowledges nothing more of this source: {printable(source.gap)}"
    remedy = "restart capture, which resends everything unconfirmed, then run flushtracker track once with --recover"
    return Finding("job", "source_set_aside", text, remedy, WRONG)


def _open_transactions(job: JobStatus) -> Finding | None:
    """A finding if a transaction has hidden records of the job's topics for longer than writers need."""
    if not job.open_transactions:
        return None
    first, *others = sorted(job.open_transactions, key=lambda each: each.since_ms)
    age = seconds_text((job.age_ms(first.since_ms) or 0) / 1000)
    text = (
        f"a transaction of {printable(first.producers)} has been open for {age} in {printable(first.topic)} partition "
        f"{first.partition}, from Kafka offset {first.last_stable_offset} on: it and what is behind it does not count "
        f"yet, {first.hidden_records:,} records"
    )
    more = f" (and {len(others)} more)" if others else ""
    remedy = (
        "see its writer's log; the broker aborts it after its transaction.timeout.ms, and one that is older hangs: "
        f"kafka-transactions.sh abort --topic {printable(first.topic)} --partition {first.partition} --start-offset "
        f"{first.last_stable_offset}"
    )
    return Finding("job", "transaction_open", f"{text}{more}", remedy, holds_shapes=True)


def idle_cause(slot: SlotStatus, source: SourceStatus, limit_bytes: int | None = None) -> Finding | None:
    """Why an active slot retains much although no shape holds the ack."""
    if not slot.is_active or source.pending_shapes or source.gap:
        return None
    if slot.retained_bytes <= (_LARGE_BYTES if limit_bytes is None else limit_bytes):
        return None
    confirmed_lsn = slot.written_lsn if slot.confirmed_lsn is None else slot.confirmed_lsn
    unconfirmed = slot.written_lsn - confirmed_lsn
    if 2 * unconfirmed < slot.retained_bytes:
        return Finding(
            "postgres",
            "restart_lsn_held",
            "no shape holds it: a transaction that runs for long, or is prepared, keeps the slot's restart_lsn",
            "end it: SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY "
            "xact_start; SELECT * FROM pg_prepared_xacts",
        )
    seen = "nothing" if source.last_seen_lsn is None else format_lsn(source.last_seen_lsn)
    return Finding(
        "postgres",
        "nothing_to_confirm",
        f"no shape holds it: the job has seen {seen} as the last commit, and the server has written "
        f"{bytes_text(unconfirmed)} since what is confirmed",
        "if other databases write it, set capture.intervals.heartbeat; else capture or the job is "
        "behind: see their logs",
    )
