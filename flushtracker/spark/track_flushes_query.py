"""The streaming query of ``jobs/track_flushes.py``, from its start to its clean end."""

import logging
import time
from threading import Event
from typing import Final

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from flushtracker.config import JobConfig
from flushtracker.delta.ack_table import AckTable
from flushtracker.errors import FlushtrackerError, StateError
from flushtracker.spark.committed_state import read_committed_state
from flushtracker.spark.driver import AckDriver, StoppedError
from flushtracker.spark.group_state import OUTPUT_SCHEMA, STATE_SCHEMA, GroupSettings, state_function
from flushtracker.spark.java_reason import JAVA_ERRORS, java_reason
from flushtracker.spark.paths import checkpoint_path, spark_path
from flushtracker.spark.rows import to_rows
from flushtracker.spark.sources import read_events
from flushtracker.spark.stall_watch import StallWatch

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.2
_COMMIT_TIMEOUT_S: Final = 30.0


def track_flushes(spark: SparkSession, config: JobConfig, stop: Event) -> None:
    """Run until ``stop`` is set, or with ``available_now`` until everything there has been read.

    Raises:
        FlushtrackerError: whatever ended the query; nothing of the batch that met it is acknowledged.
    """
    checkpoint = checkpoint_path(config.state.checkpoint)
    acks = AckTable(config.sink.acks, config.sink.storage_options)
    state = read_committed_state(spark, checkpoint, config.state.shape_groups)
    driver = AckDriver(acks, spark_path(config.sink.dead_letters))
    driver.restore(state)
    settings = GroupSettings(config.state.shape_groups, config.state.max_pending_transactions, acks.last_acks())
    query = _start(spark, config, checkpoint, settings, driver)
    logger.info("query started checkpoint=%s after_batch_id=%d acks=%s", checkpoint, state.batch_id, config.sink.acks)
    with StallWatch(driver, config.stall.grace_ms):
        _await_end(query, driver, stop)
    logger.info("query ended last_batch_id=%s", driver.last_batch_id)


def _start(
    spark: SparkSession, config: JobConfig, checkpoint: str, settings: GroupSettings, driver: AckDriver
) -> StreamingQuery:
    rows = to_rows(read_events(spark, config.source), config.state.shape_groups)
    reports = rows.groupBy("source", "shape_group").applyInPandasWithState(
        state_function(settings), OUTPUT_SCHEMA, STATE_SCHEMA, "update", "NoTimeout"
    )
    writer = (
        reports.writeStream.queryName("track_flushes")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(driver.handle_batch)
    )
    try:
        if config.trigger_ms is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{config.trigger_ms} milliseconds").start()
    except JAVA_ERRORS as error:
        raise StateError(f"the query cannot start on checkpoint {checkpoint}: {java_reason(error)}") from error


def _await_end(query: StreamingQuery, driver: AckDriver, stop: Event) -> None:
    while query.isActive and not stop.wait(_POLL_S):
        pass
    if stop.is_set():
        logger.info("stopping after the running batch")
        _let_batch_end(query, driver)
        query.stop()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if not isinstance(driver.failure, StoppedError):
            raise _cause(driver, error) from error


def _let_batch_end(query: StreamingQuery, driver: AckDriver) -> None:
    """Let the running batch end and Spark commit it; a batch after it is refused by the driver."""
    with driver.lock:
        driver.stopping = True
    deadline = time.monotonic() + _COMMIT_TIMEOUT_S
    while time.monotonic() < deadline and query.isActive:
        progress = query.lastProgress
        if driver.last_batch_id is None or (progress is not None and progress["batchId"] >= driver.last_batch_id):
            return
        time.sleep(_POLL_S)


def _cause(driver: AckDriver, error: PySparkException) -> BaseException:
    """What really ended the query: the driver's own failure, else what Spark says, in its first line."""
    if driver.failure is not None:
        return driver.failure
    return FlushtrackerError(f"the query ended: {java_reason(error)}")
