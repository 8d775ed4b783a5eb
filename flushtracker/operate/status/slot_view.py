"""``SlotView``: queries PostgreSQL, the programs and the ack table about a slot, in parallel and with deadlines."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from flushtracker.capture.capture_config import CaptureConfig, load_capture_config
from flushtracker.capture.source.prior_state import last_entries, sources_by_server
from flushtracker.config.one_file import read_config
from flushtracker.errors import BrokerUnavailableError, PostgresUnavailableError, SinkError, StatusError
from flushtracker.events.registry_events import is_source_entry
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.operate.status.overview import Overview, source_of
from flushtracker.operate.status.timed_call import CallResult, TimedCall
from flushtracker.postgres.connection import connect, limit_statements, server_name
from flushtracker.postgres.slot import read_slot_status, system_identifier
from flushtracker.postgres.upgrade_check import read_upgrade_facts
from flushtracker.process.clock import now_ms
from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.current_sources import slot_of
from flushtracker.status.http.peers import read_program_status
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.upgrade_facts import UpgradeFacts
from flushtracker.tracking.acks.ack_reader import Ack, AckReader

DEADLINE_S: Final = 5.0
"""The deadline for PostgreSQL and for each program."""
ACKS_DEADLINE_S: Final = 10.0
"""Reading the table's log takes one request to an object store for each of its newest files."""
_STEP_S: Final = 3
"""The timeout of one network step: a connection, a statement, a reply."""


Programs: TypeAlias = Mapping[str, CallResult[ProgramStatus]]
"""The answers by URL."""


@dataclass(frozen=True, slots=True)
class _ServerSlot:
    system_id: str
    slot: SlotStatus | None
    upgrade: UpgradeFacts | None


class SlotView:
    """The slot of capture's configuration; ``job_urls`` are base URLs of programs, one of which may be the job.

    Without ``has_job``, none of them needs to be. With ``for_upgrade``, the facts that pg_upgrade checks are queried,
    too.
    """

    def __init__(
        self, config: CaptureConfig, job_urls: Sequence[str], *, has_job: bool = True, for_upgrade: bool = False
    ) -> None:
        self._config = config
        self._has_job = has_job
        self._for_upgrade = for_upgrade
        self._server = f"PostgreSQL at {server_name(config.postgres.connection)}"
        self._acks = AckReader(config.acks, config.storage_options)
        silent = PostgresUnavailableError(f"{self._server} has not answered for {DEADLINE_S:g} s")
        self._slot_call = TimedCall(self._read_slot, DEADLINE_S, silent)
        unread = SinkError(
            f"ack table {config.acks} cannot be read: its storage has not answered for {ACKS_DEADLINE_S:g} s"
        )
        self._acks_call = TimedCall(self._read_acks, ACKS_DEADLINE_S, unread)
        unknown = BrokerUnavailableError(f"the registry was not readable within {DEADLINE_S:g} s")
        self._registry_call = TimedCall(self._read_registry, DEADLINE_S, unknown)
        self._named: dict[str, str] = {}
        """By system identifier of a queried server, the one in its source's name."""
        self._capture_call = self._of_capture()
        self._program_calls = {
            url: TimedCall(
                partial(read_program_status, url, _STEP_S),
                DEADLINE_S,
                StatusError(f"{url} does not answer (nothing for {DEADLINE_S:g} s)"),
            )
            for url in job_urls
        }

    @classmethod
    def of_file(cls, path: Path, job_url: str | None = None, *, for_upgrade: bool = False) -> "SlotView":
        """The slot of a configuration, with the programs that it has, or with one of another machine."""
        config = load_capture_config(path)
        peers = () if config.status is None else config.status.peers
        has_job = job_url is not None or "track" not in read_config(path).off
        return cls(config, peers if job_url is None else (job_url,), has_job=has_job, for_upgrade=for_upgrade)

    def query(self) -> Overview:
        """Query everything in parallel; takes at most the longest deadline."""
        self._slot_call.start()
        self._acks_call.start()
        if self._capture_call is not None:
            self._capture_call.start()
        for call in self._program_calls.values():
            call.start()
        server = self._slot_call.result()
        programs = {url: call.result() for url, call in self._program_calls.items()}
        acks = self._acks_call.result()
        jobs = (answer.value for answer in programs.values() if isinstance(answer.value, JobStatus))
        names = [source.source for job in jobs for source in job.sources]
        system_id = None if server.value is None else server.value.system_id
        source = self._source(system_id, [*names, *(acks.value or {})])
        url, job = _job_among(programs, source, has_job=self._has_job)
        return Overview(
            at_ms=now_ms(),
            slot_name=self._config.postgres.slot,
            source=source,
            server=self._server,
            slot=CallResult(server.at_ms, None if server.value is None else server.value.slot, server.error),
            job_url=url,
            job=job,
            acks_table=self._config.acks,
            acks=CallResult(acks.at_ms, None if source is None else (acks.value or {}).get(source), acks.error),
            others=tuple(_others(programs, job)),
            is_for_upgrade=self._for_upgrade,
            upgrade=None if server.value is None else server.value.upgrade,
            capture=None if self._capture_call is None else self._capture_call.result(),
        )

    def _of_capture(self) -> TimedCall[CaptureStatus] | None:
        """Capture itself, at its own ``status.listen``, if the file has the port."""
        status = self._config.status
        if status is None or status.listen_port == 0:
            return None
        silent = StatusError(f"{status.own_url} does not answer (nothing for {DEADLINE_S:g} s)")
        return TimedCall(partial(_read_capture, status.own_url), DEADLINE_S, silent)

    def _source(self, system_id: str | None, names: Sequence[str]) -> str | None:
        """The slot's source among ``names``; after a major upgrade, only the registry knows the server's source."""
        slot = self._config.postgres.slot
        source = source_of(slot, self._named.get(system_id or "", system_id), names)
        if source is not None or system_id is None or not any(slot_of(name) == slot for name in names):
            return source
        self._registry_call.start()
        self._named.update(self._registry_call.result().value or {})
        return source_of(slot, self._named.get(system_id, system_id), names)

    def _read_registry(self) -> dict[str, str]:
        """By system identifier of a server, the one in the name of the slot's source there."""
        kafka = replace(self._config.kafka, retry_timeout_ms=_STEP_S * 1000)
        with closing(TopicReader(kafka)) as reader:
            values = filter(is_source_entry, reader.values(kafka.topics.shapes))
            entries = last_entries(values)
        return {
            server: name.system_id for server, name in sources_by_server(entries, self._config.postgres.slot).items()
        }

    def _read_slot(self) -> _ServerSlot:
        postgres = self._config.postgres
        own = {"application_name": "flushtracker_status", "connect_timeout": str(_STEP_S)}
        connection = connect({**postgres.connection, **own})
        try:
            limit_statements(connection, statement_timeout_s=_STEP_S, lock_timeout_s=_STEP_S)
            # The facts first: WAL written after them may be confirmed, but not the reverse.
            upgrade = read_upgrade_facts(connection, postgres.slot) if self._for_upgrade else None
            slot = read_slot_status(connection, postgres.slot, now_ms())
            return _ServerSlot(system_identifier(connection), slot, upgrade)
        finally:
            connection.close()

    def _read_acks(self) -> dict[str, Ack]:
        rows = self._acks.last_rows()
        if not self._acks.exists:
            raise SinkError(
                f"there is no ack table at {self._config.acks}: the job has not started yet, or it has another storage"
            )
        return rows


def _read_capture(url: str) -> CaptureStatus:
    status = read_program_status(url, _STEP_S)
    if not isinstance(status, CaptureStatus):
        raise StatusError(f"{url} answers, but as another program of flushtracker")
    return status


def _job_among(programs: Programs, source: str | None, *, has_job: bool) -> tuple[str, CallResult[JobStatus] | None]:
    """The URL and answer of the job that has the source, else of any job, else the error of all URLs."""
    if not programs or not has_job:
        return "", None
    found = [
        (url, CallResult(answer.at_ms, answer.value))
        for url, answer in programs.items()
        if isinstance(answer.value, JobStatus)
    ]
    for url, answer in found:
        if answer.value is not None and source in {each.source for each in answer.value.sources}:
            return url, answer
    if found:
        return found[0]
    silent = {url: answer for url, answer in programs.items() if answer.error is not None}
    url, at_ms = ", ".join(silent or programs), max(answer.at_ms for answer in programs.values())
    errors = [f"job {answer.error}" for answer in silent.values()]
    if not errors:
        errors = [f"at {url} there is no tracking job, but another program of flushtracker"]
    return url, CallResult(at_ms, error=StatusError("; ".join(errors)))


def _others(programs: Programs, job: CallResult[JobStatus] | None) -> Iterator[tuple[str, CallResult[ProgramStatus]]]:
    """The programs other than tracking jobs. If the job does not respond, an unresponsive one may be the job."""
    is_job_known = job is None or job.error is None
    for url, answer in programs.items():
        if not isinstance(answer.value, JobStatus) and (is_job_known or answer.error is None):
            yield url, answer
