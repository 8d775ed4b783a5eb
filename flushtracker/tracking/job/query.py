"""The streaming query of ``flushtracker track``, from its start to its clean end."""

import logging
from dataclasses import dataclass
from threading import Event

from pyspark.sql import DataFrame, SparkSession

from flushtracker.config.job_config import JobConfig
from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import ConfigError, DecodeError, FencedError, GapError, NewerEventError
from flushtracker.spark.checkpoint_origin import CheckpointOrigin
from flushtracker.spark.committed_state import last_commit
from flushtracker.spark.hadoop_files import checkpoint_path
from flushtracker.spark.input_streams import open_streams
from flushtracker.spark.kafka_streams import KafkaEventStreams
from flushtracker.spark.query_run import BrokerRetry, await_end, shuffling, start_query
from flushtracker.spark.transaction_watch import TransactionWatch
from flushtracker.status.http.status_server import serving
from flushtracker.tracking.acks.ack_table import AckTable
from flushtracker.tracking.job.dead_letters import DeadLetters
from flushtracker.tracking.job.driver import REMEDIES, AckDriver, read_committed_reports
from flushtracker.tracking.job.group_state import OUTPUT_SCHEMA, STATE_SCHEMA, GroupSettings, state_function
from flushtracker.tracking.job.live_job_status import LiveJobStatus
from flushtracker.tracking.job.recovery import read_recovery_plan
from flushtracker.tracking.job.rows import to_rows
from flushtracker.tracking.job.stall_detector import StallDetector

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Start a new checkpoint from each source's last start, and skip all fragments of ``abandoned`` sources."""

    abandoned: tuple[str, ...] = ()


def track_flushes(spark: SparkSession, config: JobConfig, stop: Event, recovery: Recovery | None = None) -> None:
    """Run until ``stop`` is set, or with ``available_now`` until all available events have been read.

    An unavailable broker ends the query, which is restarted on its checkpoint once the broker responds.

    Raises:
        FlushtrackerError: the error that ended the query; nothing of the batch that failed is acknowledged.
    """
    status = LiveJobStatus(config.stall.grace_ms)
    with serving(config.status, status.read):
        _track(spark, config, stop, recovery, status)


def _track(
    spark: SparkSession, config: JobConfig, stop: Event, recovery: Recovery | None, status: LiveJobStatus
) -> None:
    acks = AckTable(config.sink.acks, config.sink.storage_options)
    DeadLetters(spark, config.sink.dead_letters, config.sink.storage_options).require_writable()
    retry = BrokerRetry(config.transport.retry_timeout_ms, stop)
    if recovery is not None:
        retry.call(lambda: _recover(spark, config, acks, recovery))
    checkpoint = checkpoint_path(config.state.checkpoint)
    while True:
        committed = last_commit(spark, checkpoint)
        try:
            return retry.call(lambda: _run(spark, config, stop, acks, retry, status))
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
            "--recover needs kafka, but the streams are files: remove the files from before capture's restart and "
            "set track.checkpoint to a new path instead"
        )
    streams = KafkaEventStreams(spark, config.transport)
    starts = read_recovery_plan(streams, config.transport, acks.last_acks(), recovery.abandoned)
    acks.fence_others()
    CheckpointOrigin(spark, checkpoint_path(config.state.checkpoint), REMEDIES).replace(streams.identity(), starts)


def _run(
    spark: SparkSession, config: JobConfig, stop: Event, acks: AckTable, retry: BrokerRetry, status: LiveJobStatus
) -> None:
    checkpoint = checkpoint_path(config.state.checkpoint)
    streams = open_streams(spark, config.transport)
    starts = CheckpointOrigin(spark, checkpoint, REMEDIES).open(streams.identity())
    with shuffling(spark, config.state.shuffle_partitions):
        state = read_committed_reports(spark, checkpoint, config.state.shape_groups)
        acks.fence_others()
        if last_commit(spark, checkpoint) != state.batch_id:
            state = read_committed_reports(spark, checkpoint, config.state.shape_groups)
    dead_letters = DeadLetters(spark, config.sink.dead_letters, config.sink.storage_options)
    driver = AckDriver(acks, dead_letters, status, streams.resend)
    try:
        driver.restore(state)
        reports = _reports(streams.read(starts), config, acks)
        _run_query(reports, config, stop, driver, retry, status)
    except NewerEventError:
        raise
    except (GapError, DecodeError) as error:
        raise type(error)(f"{error}: {streams.remedies[type(error).__name__]}") from error
    if config.trigger_ms is None and not stop.is_set():
        # Everything available has been read; the exit code must show that a source has a gap.
        driver.require_no_gap()
    logger.info("query ended last_batch_id=%s", driver.last_batch_id)


def _reports(events: DataFrame, config: JobConfig, acks: AckTable) -> DataFrame:
    settings = GroupSettings(config.state.shape_groups, config.state.max_pending_transactions, acks.last_acks())
    groups = to_rows(events, config.state.shape_groups).groupBy("source", "shape_group")
    return groups.applyInPandasWithState(state_function(settings), OUTPUT_SCHEMA, STATE_SCHEMA, "update", "NoTimeout")


def _run_query(
    reports: DataFrame, config: JobConfig, stop: Event, driver: AckDriver, retry: BrokerRetry, status: LiveJobStatus
) -> None:
    spark = reports.sparkSession
    checkpoint, committed = checkpoint_path(config.state.checkpoint), driver.expected_batch_id - 1
    with shuffling(spark, config.state.shuffle_partitions):
        query = start_query("track_flushes", reports, driver, checkpoint, config.trigger_ms)
    logger.info("query started checkpoint=%s after_batch_id=%d acks=%s", checkpoint, committed, config.sink.acks)
    watch = TransactionWatch(spark, config.transport, status.note_open_transactions)
    with status.running(query), StallDetector(status), watch:
        await_end(query, driver, stop, config, retry)
