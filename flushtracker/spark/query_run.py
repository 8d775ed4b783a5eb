"""A streaming query of any job: its start, its retries while a broker is unavailable, and its clean end."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from flushtracker.config.job_config import QueryConfig
from flushtracker.errors import BrokerError, StateError
from flushtracker.spark.batch_driver import BatchDriver, BatchStoppedError
from flushtracker.spark.file_manager import choose_file_manager
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason, query_failure
from flushtracker.spark.query_progress import has_read_everything

logger = logging.getLogger(__name__)

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_POLL_S: Final = 0.2
_COMMIT_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 2.0
_LOG_EVERY_S: Final = 30.0


class BrokerRetry:
    """Retries after a ``BrokerError``, until ``retry_timeout_ms`` have passed without progress or ``stop`` is set."""

    def __init__(self, retry_timeout_ms: int, stop: Event, now_s: Callable[[], float] = time.monotonic) -> None:
        self._retry_timeout_s = retry_timeout_ms / 1000
        self._stop = stop
        self._now_s = now_s
        self._failing_since_s: float | None = None
        self._logged_s = 0.0

    def call(self, attempt: Callable[[], None]) -> None:
        """Call ``attempt`` until it returns or ``stop`` is set; raises ``BrokerError`` once the timeout has passed."""
        while not self._stop.is_set():
            try:
                attempt()
            except BrokerError as error:  # noqa: PERF203  each round takes seconds
                self._pause_or_give_up(error)
            else:
                return

    @property
    def is_failing(self) -> bool:
        """Whether an attempt has failed since the last progress."""
        return self._failing_since_s is not None

    def progress(self) -> None:
        """Restart the timeout: the job has read all that it planned to, so every broker that it needs responds."""
        if self._failing_since_s is not None:
            logger.info("broker available again after_s=%.0f", self._now_s() - self._failing_since_s)
        self._failing_since_s = None

    def _pause_or_give_up(self, error: BrokerError) -> None:
        now_s = self._now_s()
        if self._failing_since_s is None:
            self._failing_since_s, self._logged_s = now_s, now_s - _LOG_EVERY_S
        elapsed_s = now_s - self._failing_since_s
        if elapsed_s >= self._retry_timeout_s:
            raise BrokerError(f"{error}; gave up after {elapsed_s:.0f} s (kafka.retry_timeout)") from error
        if now_s - self._logged_s >= _LOG_EVERY_S:
            logger.warning("%s; retrying for up to %.0f s more", error, self._retry_timeout_s - elapsed_s)
            self._logged_s = now_s
        self._stop.wait(_PAUSE_S)


@contextmanager
def shuffling(spark: SparkSession, partitions: int) -> Iterator[None]:
    """Queries started in the block have this number of shuffle partitions; other queries of the session keep theirs."""
    before = spark.conf.get(_PARTITIONS)
    spark.conf.set(_PARTITIONS, str(partitions))
    try:
        yield
    finally:
        spark.conf.set(_PARTITIONS, str(before))


def start_query(
    name: str, rows: DataFrame, driver: BatchDriver, checkpoint: str, trigger_ms: int | None
) -> StreamingQuery:
    """Start the query ``name``, which passes each batch of ``rows`` to the driver.

    ``trigger_ms`` is ``None`` for a query that reads what is available and ends. Raises ``StateError``.
    """
    writer = (
        rows.writeStream.queryName(name)
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(driver.handle_batch)
    )
    try:
        choose_file_manager(rows.sparkSession, checkpoint)
        if trigger_ms is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{trigger_ms} milliseconds").start()
    except JAVA_ERRORS as error:
        raise StateError(f"the query cannot start on checkpoint {checkpoint}: {java_reason(error)}") from error


def await_end(query: StreamingQuery, driver: BatchDriver, stop: Event, config: QueryConfig, retry: BrokerRetry) -> None:
    """Wait for the end of the query, or for ``stop``, and then for its clean end.

    Raises:
        FlushtrackerError: the error that ended the query.
    """
    while query.isActive and not stop.wait(_POLL_S):
        # A running batch may still wait for a partition whose leader is unavailable.
        if retry.is_failing and (driver.finished_batch_id is not None or has_read_everything(query)):
            retry.progress()
    interrupted = False
    if stop.is_set():
        logger.info("stopping after the running batch")
        interrupted = not _await_running_batch(query, driver)
        if interrupted:
            logger.warning("interrupting the running batch batch_id=%s", driver.last_batch_id)
        query.stop()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        failure = query_failure(query, driver.failure, config)
        # An interrupted batch fails in Spark; only exceptions of our own code count.
        if not isinstance(failure, BatchStoppedError) and (failure is driver.failure or not interrupted):
            raise failure from error


def _await_running_batch(query: StreamingQuery, driver: BatchDriver) -> bool:
    """Wait until Spark has committed the running batch; the driver refuses later ones. False after a timeout."""
    driver.stopping = True
    deadline = time.monotonic() + _COMMIT_TIMEOUT_S
    # The lock is held while a batch is handled.
    if not driver.lock.acquire(timeout=_COMMIT_TIMEOUT_S):
        return False
    driver.lock.release()
    while time.monotonic() < deadline and query.isActive:
        progress = query.lastProgress
        if driver.last_batch_id is None or (progress is not None and progress["batchId"] >= driver.last_batch_id):
            return True
        time.sleep(_POLL_S)
    return not query.isActive
