"""``LiveServeStatus``: the status of the running server."""

from flushtracker.process.clock import now_ms
from flushtracker.serve.server import Served
from flushtracker.status.serve_status import AnswerCount, ServeStatus, TailStatus


class LiveServeStatus:
    """Reads the event loop's counters from another thread; each is correct, but not all are of the same moment."""

    def __init__(self, served: Served, started_at_ms: int) -> None:
        self._served = served
        self._started_at_ms = started_at_ms

    def read(self) -> ServeStatus:
        """The server's current status; never blocks."""
        served, parts, at_ms = self._served, self._served.parts, now_ms()
        poller = parts.poller
        on_demand = parts.on_demand
        age_s, recent = poller.age_s, served.app.recent.last_minute()
        return ServeStatus(
            at_ms=at_ms,
            started_at_ms=self._started_at_ms,
            source=served.source,
            not_ready_because=served.app.not_ready_because,
            problem=poller.problem,
            looked_at_ms=None if poller.polls == 0 else at_ms - int(age_s * 1_000),
            looks=poller.polls,
            failed_looks=poller.failed_polls,
            log_version=poller.view.version,
            shapes=len(poller.view.shape_ids),
            watched_shapes=poller.polled_shapes,
            connections=served.connections(),
            waiting_clients=served.answers.waiting,
            answers=tuple(AnswerCount(*each) for each in sorted(served.app.answered.copy().items())),
            recent_answers=recent.answers,
            recent_errors=recent.errors,
            sent_bytes=served.app.sent_bytes,
            running_log_reads=parts.log_flights.running,
            running_row_reads=parts.row_flights.running,
            log_reads=parts.log_flights.started,
            row_reads=parts.row_flights.started,
            refused_reads=sum(each.refused for each in parts.flights),
            kept_pages=len(parts.pages),
            kept_states=len(parts.states),
            kept_memory_bytes=parts.pages.memory_bytes,
            kept_disk_bytes=parts.pages.disk_bytes + parts.states.disk_bytes,
            on_demand_definitions=0 if on_demand is None else len(on_demand.kept),
            refused_definitions=0 if on_demand is None else on_demand.kept.refused,
            running_on_demand_reads=0 if on_demand is None else sum(each.running for each in on_demand.flights),
            on_demand_reads=0 if on_demand is None else sum(each.started for each in on_demand.flights),
            running_subset_reads=parts.subset_flights.running,
            subset_reads=parts.subset_counts.reads,
            subset_read_ms=int(parts.subset_counts.read_s * 1_000),
            subset_rows=parts.subset_counts.rows,
            tail=self._tail(),
        )

    def _tail(self) -> TailStatus | None:
        reader, pages = self._served.tail_reader, self._served.parts.tail_pages
        if reader is None or pages is None:
            return None
        return TailStatus(
            problem=reader.problem,
            lag_ms=reader.lag_ms,
            records=reader.records,
            skipped_records=reader.skipped,
            unreadable_records=reader.unreadable,
            outages=reader.outages,
            resets=pages.tails.resets,
            answers=pages.answers,
            unlinked=pages.unlinked,
            memory_bytes=pages.tails.memory_bytes,
        )
