"""``LiveQuery``: the state of a job's query and batches, readable from any thread.

It outlives the queries and their drivers: while a query is restarted, the figures are those of the last one. Values are
replaced, never modified, so a reader needs no lock and never waits for a batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.sql.streaming.query import StreamingQuery

from flushtracker.process.clock import now_ms
from flushtracker.spark.query_progress import QueryProgress, read_progress


class QueryFigures(NamedTuple):
    """A query's figures, named as in the jobs' documents."""

    is_ready: bool = False
    batch_id: int | None = None
    batch_at_ms: int | None = None
    batch_running_since_ms: int | None = None
    batches: int = 0
    batch_ms: int = 0
    records_behind: int | None = None
    state_bytes: int | None = None


class LiveQuery:
    """One thread at a time records; any thread may read."""

    def __init__(self, clock_ms: Callable[[], int] = now_ms) -> None:
        self._clock_ms = clock_ms
        self._figures = QueryFigures()
        self._query: StreamingQuery | None = None
        self._has_run = False
        self._batch_running_since_ms: int | None = None

    @contextmanager
    def processing(self) -> Iterator[None]:
        """Record that a batch is processed inside the ``with`` block, whether or not it succeeds.

        Spark's own time before and after it, for example for Kafka's offsets, is not included.
        """
        self._batch_running_since_ms = self._clock_ms()
        try:
            yield
        finally:
            self._batch_running_since_ms = None

    def batch_done(self, batch_id: int, batch_ms: int) -> None:
        """Record a batch that has ended without an error; the sums include all drivers."""
        last = self._figures
        self._figures = last._replace(
            batch_id=batch_id, batch_at_ms=self._clock_ms(), batches=last.batches + 1, batch_ms=last.batch_ms + batch_ms
        )

    @contextmanager
    def running(self, query: StreamingQuery) -> Iterator[None]:
        """Read the progress of ``query`` inside the ``with`` block."""
        self._query = query
        try:
            yield
        finally:
            self._query, self._has_run = None, False

    def figures(self) -> QueryFigures:
        query = self._query
        progress = QueryProgress() if query is None else read_progress(query, has_run=self._has_run)
        self._has_run |= progress.is_running
        return self._figures._replace(
            is_ready=progress.is_running,
            batch_running_since_ms=self._batch_running_since_ms,
            records_behind=progress.records_behind,
            state_bytes=progress.state_bytes,
        )
