"""A streaming query of any job, from its start to its clean end."""

import logging
import time
from threading import Event
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from flushtracker.config.job_config import QueryConfig
from flushtracker.errors import StateError
from flushtracker.spark.batch_driver import BatchDriver, StoppedError
from flushtracker.spark.broker_retry import BrokerRetry
from flushtracker.spark.hadoop_files import avoid_processes
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason, query_failure
from flushtracker.spark.query_progress import has_read_everything

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.2
_COMMIT_TIMEOUT_S: Final = 30.0


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
        avoid_processes(rows.sparkSession, checkpoint)
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
        # A batch that has begun may still wait for a partition whose leader is away.
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
        # An interrupted batch fails in Spark; only what our own code has raised in it counts.
        if not isinstance(failure, StoppedError) and (failure is driver.failure or not interrupted):
            raise failure from error


def _await_running_batch(query: StreamingQuery, driver: BatchDriver) -> bool:
    """Wait until Spark has committed the running batch; the driver refuses any later one. False after a timeout."""
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
