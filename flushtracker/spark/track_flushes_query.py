"""The streaming query of ``flushtracker track``, from its start to its clean end."""

import logging
import time
from dataclasses import dataclass
from threading import Event
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from flushtracker.config.job_config import JobConfig
from flushtracker.config.transport import KafkaTransport
from flushtracker.delta.ack_table import AckTable
from flushtracker.errors import ConfigError, DecodeError, FencedError, GapError, StateError
from flushtracker.spark.broker_retry import BrokerRetry
from flushtracker.spark.checkpoint_origin import CheckpointOrigin
from flushtracker.spark.committed_state import last_commit, read_committed_state
from flushtracker.spark.dead_letters import DeadLetters
from flushtracker.spark.driver import AckDriver, StoppedError
from flushtracker.spark.event_streams import open_streams
from flushtracker.spark.group_state import OUTPUT_SCHEMA, STATE_SCHEMA, GroupSettings, state_function
from flushtracker.spark.hadoop_files import checkpoint_path, spark_path
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason, query_failure
from flushtracker.spark.kafka_streams import KafkaEventStreams
from flushtracker.spark.recovery import read_recovery_plan
from flushtracker.spark.rows import to_rows
from flushtracker.spark.stall_watch import StallWatch

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.2
_COMMIT_TIMEOUT_S: Final = 30.0
_NO_DATA: Final = "Waiting for data to arrive"
"""The message of a query's status between its triggers, when the last one found nothing new."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Start a new checkpoint from what capture sent last, and skip all existing fragments of ``abandoned`` sources."""

    abandoned: tuple[str, ...] = ()


def track_flushes(spark: SparkSession, config: JobConfig, stop: Event, recovery: Recovery | None = None) -> None:
    """Run until ``stop`` is set, or with ``available_now`` until all available events have been read.

    An unavailable broker ends the query, which is restarted on its checkpoint once the broker answers.

    Raises:
        FlushtrackerError: the error that ended the query; nothing of the batch that failed is acknowledged.
    """
    acks = AckTable(config.sink.acks, config.sink.storage_options)
    retry = BrokerRetry(config.transport.retry_timeout_ms, stop)
    if recovery is not None:
        retry.call(lambda: _recover(spark, config, acks, recovery))
    checkpoint = checkpoint_path(config.state.checkpoint)
    while True:
        committed = last_commit(spark, checkpoint)
        try:
            return retry.call(lambda: _run(spark, config, stop, acks, retry))
        except FencedError:
            # A fenced driver may complete one more batch before it notices. Then this driver continues from there. If
            # nothing was committed in the meantime, something else is wrong.
            acks.require_not_fenced()
            if last_commit(spark, checkpoint) == committed:
                raise
            logger.warning("fenced driver committed one more batch, restarting after it")


def _recover(spark: SparkSession, config: JobConfig, acks: AckTable, recovery: Recovery) -> None:
    if not isinstance(config.transport, KafkaTransport):
        raise ConfigError(
            "--recover needs source.format kafka, but it is files: remove the files from before capture's restart and "
            "set state.checkpoint to a new path instead"
        )
    streams = KafkaEventStreams(spark, config.transport)
    starts = read_recovery_plan(streams, config.transport, acks.last_acks(), recovery.abandoned)
    acks.fence_others()
    CheckpointOrigin(spark, checkpoint_path(config.state.checkpoint)).replace(streams.identity(), starts)


def _run(spark: SparkSession, config: JobConfig, stop: Event, acks: AckTable, retry: BrokerRetry) -> None:
    checkpoint = checkpoint_path(config.state.checkpoint)
    streams = open_streams(spark, config.transport)
    starts = CheckpointOrigin(spark, checkpoint).open(streams.identity())
    state = read_committed_state(spark, checkpoint, config.state.shape_groups)
    acks.fence_others()
    if last_commit(spark, checkpoint) != state.batch_id:
        state = read_committed_state(spark, checkpoint, config.state.shape_groups)
    driver = AckDriver(acks, DeadLetters(spark_path(config.sink.dead_letters)))
    driver.restore(state)
    settings = GroupSettings(config.state.shape_groups, config.state.max_pending_transactions, acks.last_acks())
    query = _start(config, checkpoint, streams.read(starts), settings, driver)
    logger.info("query started checkpoint=%s after_batch_id=%d acks=%s", checkpoint, state.batch_id, config.sink.acks)
    try:
        with StallWatch(driver, config.stall.grace_ms):
            _await_end(query, driver, stop, config, retry)
    except (GapError, DecodeError) as error:
        remedy = streams.remedies[type(error).__name__]
        raise type(error)(f"{error}: {remedy}") from error
    logger.info("query ended last_batch_id=%s", driver.last_batch_id)


def _start(
    config: JobConfig, checkpoint: str, events: DataFrame, settings: GroupSettings, driver: AckDriver
) -> StreamingQuery:
    rows = to_rows(events, config.state.shape_groups)
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


def _await_end(query: StreamingQuery, driver: AckDriver, stop: Event, config: JobConfig, retry: BrokerRetry) -> None:
    while query.isActive and not stop.wait(_POLL_S):
        # A batch that has begun may still wait for a partition whose leader is away.
        if retry.is_failing and (driver.finished_batch_id is not None or _has_read_everything(query)):
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


def _has_read_everything(query: StreamingQuery) -> bool:
    """Whether Kafka has told the end of each partition, and the query has read up to there."""
    status = query.status
    return status["message"] == _NO_DATA and not status["isTriggerActive"]


def _await_running_batch(query: StreamingQuery, driver: AckDriver) -> bool:
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
