"""``StatusOutput``: what ``flushtracker status --json`` prints; docs/schemas/status_command.json is derived from it."""

from typing import Annotated, Any

from flushtracker.operate.status.overview import Overview, milliseconds
from flushtracker.operate.status.timed_call import CallResult
from flushtracker.operate.status.verdict import Verdict
from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.document import VERSION, Lsn, Natural, StatusObject, about
from flushtracker.status.finding import Finding
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.upgrade_facts import UpgradeFacts
from flushtracker.tracking.acks.ack_reader import Ack


class TimedAnswer(StatusObject, frozen=True):
    """The answer of one that was queried: either what it found or an error."""

    at_ms: Annotated[int, about("when it has answered, or the deadline passed")]
    error: Annotated[str | None, about("why nothing was found; then the other keys have no values")]


class ServerAnswer(TimedAnswer, frozen=True):
    """The answer of PostgreSQL."""

    slot: Annotated[
        SlotStatus | None,
        about("as in `pg_replication_slots`; `null` if PostgreSQL is silent (`error`), or has no such slot"),
    ]


class ProgramAnswer(TimedAnswer, frozen=True):
    """The answer of a program at one of the URLs that were queried."""

    url: Annotated[str, about("its address")]
    status: Annotated[
        ProgramStatus | None, about("the document of its `/status.json`; `null` if it is silent (`error`)")
    ]


class JobAnswer(TimedAnswer, frozen=True):
    """The answer of the tracking job."""

    url: Annotated[str, about("its address")]
    status: Annotated[
        JobStatus | None,
        about("the document of its `/status.json`, with all of its sources; `null` if it is silent (`error`)"),
    ]


class CaptureAnswer(TimedAnswer, frozen=True):
    """The answer of capture."""

    status: Annotated[
        CaptureStatus | None, about("the document of its `/status.json`; `null` if it is silent (`error`)")
    ]


class LastAck(StatusObject, frozen=True):
    """A row of the ack table."""

    at_ms: Annotated[int, about("when it was written")]
    ack_lsn: Annotated[Lsn, about("the ack")]
    last_seen_lsn: Annotated[Lsn, about("the last commit that the job had seen")]
    pending_shapes: Annotated[Natural, about("how many shapes had not flushed everything")]
    blocking_shape_then: Annotated[str | None, about("the shape that held the ack at `at_ms`, not now")]


class AcksAnswer(TimedAnswer, frozen=True):
    """The answer of the ack table."""

    table: Annotated[str, about("the path of the table")]
    last: Annotated[
        LastAck | None, about("the source's last row, as of when it was written: what has happened since is not in it")
    ]


class OutputVerdict(StatusObject, frozen=True):
    """What is wrong."""

    exit_code: Annotated[int, about("the exit code of the command")]
    waiting_ms: Annotated[
        Natural | None,
        about("for how long the ack has not moved although something is pending: 0 if nothing is, `null` if unknown"),
    ]
    findings: Annotated[tuple[Finding, ...], about("all findings, the slot's first")]


class StatusOutput(StatusObject, frozen=True):
    """All answers, and the verdict on them."""

    at_ms: Annotated[int, about("when everybody had answered, or the deadlines had passed")]
    source: Annotated[
        str | None,
        about(
            "the slot's source, with its last epoch; `null` if neither the job nor the ack table has one, or if "
            "several servers have such a slot and PostgreSQL is silent"
        ),
    ]
    postgres: Annotated[ServerAnswer, about("what PostgreSQL answered")]
    job: Annotated[JobAnswer | None, about("the tracking job; `null` if its address is not known")]
    capture: Annotated[
        CaptureAnswer | None,
        about("capture itself, at `status.listen` of the configuration; `null` if that is not set"),
    ]
    acks: Annotated[AcksAnswer, about("what the ack table has")]
    others: Annotated[
        tuple[ProgramAnswer, ...],
        about("all other programs that were queried, except one that may be the job because that is silent"),
    ]
    upgrade: Annotated[
        UpgradeFacts | None,
        about("with `--safe-to-upgrade`, what pg_upgrade will look at; `null` without, or if PostgreSQL is silent"),
    ]
    verdict: Annotated[OutputVerdict, about("what is wrong")]

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **StatusObject.to_json(self)}


def status_output(overview: Overview, verdict: Verdict) -> StatusOutput:
    """All that the command has found, for programs."""
    slot, job, row, capture = overview.slot, overview.job, overview.last_row, overview.capture
    return StatusOutput(
        at_ms=overview.at_ms,
        source=overview.source,
        postgres=ServerAnswer(slot.at_ms, _text(slot), slot.value),
        job=None if job is None else JobAnswer(job.at_ms, _text(job), overview.job_url, job.value),
        capture=None if capture is None else CaptureAnswer(capture.at_ms, _text(capture), capture.value),
        acks=AcksAnswer(
            overview.acks.at_ms, _text(overview.acks), overview.acks_table, None if row is None else _ack(row)
        ),
        others=tuple(ProgramAnswer(each.at_ms, _text(each), url, each.value) for url, each in overview.others),
        upgrade=overview.upgrade,
        verdict=OutputVerdict(verdict.exit_code, overview.waiting_ms, verdict.findings),
    )


def _text(answer: CallResult[Any]) -> str | None:
    return None if answer.error is None else str(answer.error)


def _ack(row: Ack) -> LastAck:
    return LastAck(milliseconds(row.acked_at), row.ack_lsn, row.last_seen_lsn, row.pending_shapes, row.blocking_shape)
