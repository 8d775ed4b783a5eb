"""``SlotView``: queries PostgreSQL, the tracking job and the ack table about a slot, in parallel and with deadlines."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from flushtracker.capture.capture_config import CaptureConfig
from flushtracker.delta.acks.reader import Ack, AckReader
from flushtracker.errors import PostgresUnavailableError, SinkError, StatusError
from flushtracker.operate.status.job_status_reader import read_job_status
from flushtracker.operate.status.overview import Overview, source_of
from flushtracker.operate.status.question import Answer, Question
from flushtracker.postgres.connection import connect, limit_statements, server_name
from flushtracker.postgres.slot import read_slot_status, system_identifier
from flushtracker.process.clock import now_ms
from flushtracker.status.capture_status import SlotStatus
from flushtracker.status.job_status import JobStatus

DEADLINE_S: Final = 5.0
"""For PostgreSQL and the job."""
ACKS_DEADLINE_S: Final = 10.0
"""Reading the table's log takes one request to an object store for each of its newest files."""
_STEP_S: Final = 3
"""For one step over the network: a connection, a statement, a reply."""


@dataclass(frozen=True, slots=True)
class _ServerSlot:
    system_id: str
    slot: SlotStatus | None


class SlotView:
    """The slot of capture's configuration; ``job_urls`` are base URLs of programs, one of which may be the job."""

    def __init__(self, config: CaptureConfig, job_urls: Sequence[str]) -> None:
        self._config = config
        self._server = f"PostgreSQL at {server_name(config.postgres.connection)}"
        self._acks = AckReader(config.acks, config.storage_options)
        silent = PostgresUnavailableError(f"{self._server} has not answered for {DEADLINE_S:g} s")
        self._slot_question = Question(self._read_slot, DEADLINE_S, silent)
        unread = SinkError(
            f"ack table {config.acks} cannot be read: its storage has not answered for {ACKS_DEADLINE_S:g} s"
        )
        self._acks_question = Question(self._read_acks, ACKS_DEADLINE_S, unread)
        self._job_questions = {
            url: Question(
                partial(read_job_status, url, _STEP_S),
                DEADLINE_S,
                StatusError(f"job {url} does not answer (nothing for {DEADLINE_S:g} s)"),
            )
            for url in job_urls
        }

    def look(self) -> Overview:
        """Query all of them; takes at most the longest deadline."""
        self._slot_question.ask()
        self._acks_question.ask()
        for question in self._job_questions.values():
            question.ask()
        server = self._slot_question.answer()
        jobs = {url: question.answer() for url, question in self._job_questions.items()}
        acks = self._acks_question.answer()
        names = [source.source for job in jobs.values() if job.value is not None for source in job.value.sources]
        system_id = None if server.value is None else server.value.system_id
        source = source_of(self._config.postgres.slot, system_id, [*names, *(acks.value or {})])
        url, job = _job_among(jobs, source)
        return Overview(
            at_ms=now_ms(),
            slot_name=self._config.postgres.slot,
            source=source,
            server=self._server,
            slot=Answer(server.at_ms, None if server.value is None else server.value.slot, server.error),
            job_url=url,
            job=job,
            acks_table=self._config.acks,
            acks=Answer(acks.at_ms, None if source is None else (acks.value or {}).get(source), acks.error),
        )

    @property
    def is_waiting(self) -> bool:
        """Whether a query is still running."""
        is_job_open = any(question.is_open for question in self._job_questions.values())
        return self._slot_question.is_open or self._acks_question.is_open or is_job_open

    def _read_slot(self) -> _ServerSlot:
        postgres = self._config.postgres
        own = {"application_name": "flushtracker_status", "connect_timeout": str(_STEP_S)}
        connection = connect({**postgres.connection, **own})
        try:
            limit_statements(connection, statement_timeout_s=_STEP_S, lock_timeout_s=_STEP_S)
            return _ServerSlot(system_identifier(connection), read_slot_status(connection, postgres.slot, now_ms()))
        finally:
            connection.close()

    def _read_acks(self) -> dict[str, Ack]:
        rows = self._acks.last_rows()
        if not self._acks.exists:
            raise SinkError(
                f"there is no ack table at {self._config.acks}: the job has not started yet, or acks in capture's "
                "configuration is not sink.acks of the job"
            )
        return rows


def _job_among(jobs: dict[str, Answer[JobStatus | None]], source: str | None) -> tuple[str, Answer[JobStatus] | None]:
    """The URL and answer of the job that has the source, else of any job, else the error of all URLs."""
    if not jobs:
        return "", None
    found = [(url, Answer(job.at_ms, job.value)) for url, job in jobs.items() if job.value is not None]
    for url, answer in found:
        if answer.value is not None and source in {each.source for each in answer.value.sources}:
            return url, answer
    if found:
        return found[0]
    url, at_ms = ", ".join(jobs), max(job.at_ms for job in jobs.values())
    errors = [str(job.error) for job in jobs.values() if job.error is not None]
    if not errors:
        errors = [f"at {url} there is no tracking job, but another program of flushtracker"]
    return url, Answer(at_ms, error=StatusError("; ".join(errors)))
