"""The streaming query of ``flushtracker write``, from its start to its clean end."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from threading import Event
from typing import Final

from pyspark.sql import SparkSession

from flushtracker.config.snapshot_config import SnapshotConfig
from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import ROLES, WriteConfig
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import BrokerError, ConfigError, DecodeError, NewerEventError, listed
from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.shape_log.write.background import SNAPSHOT_PERIOD_S, ShapesThread, SnapshotThread, UpkeepThread
from flushtracker.shape_log.write.consumed_changes import ConsumedThread
from flushtracker.shape_log.write.cuts import cuts_thread
from flushtracker.shape_log.write.driver import REMEDIES, LogTables, WriteDriver
from flushtracker.shape_log.write.group_state import OUTPUT_SCHEMA, STATE_SCHEMA, write_function
from flushtracker.shape_log.write.live_write_status import LiveWriteStatus, WrittenBatch
from flushtracker.shape_log.write.log_ends import (
    CommittedWriters,
    LogEnds,
    StoredEnds,
    known_ends,
    last_rows,
    read_log_ends,
    unknown_ends,
)
from flushtracker.shape_log.write.notifier import open_notifier
from flushtracker.shape_log.write.read_offsets import topic_offsets
from flushtracker.shape_log.write.rows import NO_SHAPE, to_write_rows
from flushtracker.shape_log.write.shape_counts import with_own_flushes
from flushtracker.shape_log.write.stored_rows import store_function
from flushtracker.shape_log.write_loop import notifiable
from flushtracker.shape_log.writer_group import WriterGroup, WriterSettings
from flushtracker.spark.checkpoint_origin import CheckpointOrigin
from flushtracker.spark.committed_state import read_state_rows
from flushtracker.spark.hadoop_files import checkpoint_path, spark_path
from flushtracker.spark.input_streams import EventStreams, open_streams
from flushtracker.spark.kafka_streams import KafkaEventStreams
from flushtracker.spark.query_run import BrokerRetry, await_end, shuffling, start_query
from flushtracker.spark.recovery_plan import RecoveryPlan
from flushtracker.spark.shape_grouping import shape_group_of
from flushtracker.spark.transaction_watch import TransactionWatch
from flushtracker.spark.workers import task_attempts
from flushtracker.status.http.status_server import serving
from flushtracker.wal.log_offset import LogOffset

logger = logging.getLogger(__name__)

_KAFKA_OPTIONS: Final = {
    # Each shape's events form a separate chain: if some records have expired, only those shapes have a gap.
    "failOnDataLoss": "false",
    # An event may have a hundred rows or more.
    "maxOffsetsPerTrigger": "20000",
}
_UNREADABLE_RECORD: Final = (
    "if it is in the topic of shapes, delete nothing, but have capture replace it, see the runbook; in that of shape "
    "changes, "
    "delete the records of its partition up to this one (kafka-delete-records.sh), restart capture, which sends again "
    "what is not confirmed, and start again"
)


def write_shapes(spark: SparkSession, config: WriteConfig, stop: Event) -> None:
    """Run until ``stop`` is set, or with ``available_now`` until all available changes have been written.

    An unavailable broker ends the query, which is restarted on its checkpoint once the broker responds.

    Raises:
        FlushtrackerError: the error that ended the query; nothing of the batch that failed is notified.
    """
    retry = BrokerRetry(config.transport.retry_timeout_ms, stop)
    status = LiveWriteStatus(None if config.tables is None else LiveSnapshotStatus())
    # Spark's timer flushes what shapes hold back, which takes batches without data.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(config.flush == "hold").lower())
    # A worker holds twice this many rows of the state function's output, each of up to `PACKED_BYTES`.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "250")
    with serving(config.status, status.read):
        retry.call(lambda: _try(spark, config, stop, retry, status))


def _try(spark: SparkSession, config: WriteConfig, stop: Event, retry: BrokerRetry, status: LiveWriteStatus) -> None:
    """Run the query, and record a failure that is retried."""
    try:
        _run(spark, config, stop, retry, status)
    except BrokerError as error:
        status.note_failure(error)
        raise


def _run(spark: SparkSession, config: WriteConfig, stop: Event, retry: BrokerRetry, status: LiveWriteStatus) -> None:
    checkpoint, log = checkpoint_path(config.state.checkpoint), spark_path(config.sink.log)
    table = create_shape_log(config.sink.log, config.sink.storage_options)
    registry = RegistryTable(config.sink.shapes, config.sink.storage_options, create=True)
    streams = open_streams(spark, config.transport, _KAFKA_OPTIONS)
    # The state has timers only with `flush: hold`, so Spark cannot read a state written with the other setting.
    identity = {**streams.identity(), "log": f"{log} ({table.metadata().id})", "flush": config.flush}
    CheckpointOrigin(spark, checkpoint, REMEDIES).open(identity)
    with shuffling(spark, config.state.shuffle_partitions):
        committed = _committed_writers(spark, checkpoint, config)
    claim = LogClaim(table)
    ends = _claim_log(spark, checkpoint, log, claim, committed)
    registry.fence_others()
    with closing(open_notifier(config)) as notifier:
        # Notify the durable offsets again: the previous process may not have done so.
        known = known_ends(ends, committed.durable)
        notifier.start({key: notifiable(offset) for key, offset in known.items()})
        status.note_written(_durable_now(known))
        known_shapes = registry.entries()
        if config.status is not None:
            status.registry = known_shapes
        if config.flush == "batch" and (ignored := with_own_flushes(known_shapes)):
            logger.warning("flush: batch uses neither bytes nor interval of these shapes shape_ids=%s", listed(ignored))
        options = config.sink.storage_options
        files = row_files(table, options)
        tables = LogTables(files, claim, LogFiles(table, dict(options)), registry)
        driver = WriteDriver(tables, notifier, committed.batch_id + 1, status)
        settings = WriterSettings(config.write_unit, config.flush == "hold", ends)
        rows = to_write_rows(streams.read(RecoveryPlan()), config.state.shape_groups)
        written = rows.groupBy("source", "shape_group").applyInPandasWithState(
            write_function(settings, config.state.shape_groups),
            OUTPUT_SCHEMA,
            STATE_SCHEMA,
            "update",
            "ProcessingTimeTimeout" if settings.hold else "NoTimeout",
        )
        stored = written.mapInArrow(store_function(files, task_attempts(spark)), OUTPUT_SCHEMA)
        snapshots = _snapshots(spark, config, status)
        with shuffling(spark, config.state.shuffle_partitions):
            query = start_query("write_shapes", stored, driver, checkpoint, config.trigger_ms)
        logger.info("query started checkpoint=%s after_batch_id=%d log=%s", checkpoint, committed.batch_id, log)
        try:
            with (
                status.running(query),
                UpkeepThread(config.sink, status),
                _shapes(config, status),
                snapshots,
                _cuts(spark, config, driver, streams, status),
                _consumed(spark, config, driver, streams),
                TransactionWatch(spark, config.transport),
            ):
                await_end(query, driver, stop, config, retry)
        except NewerEventError:
            raise
        except DecodeError as error:
            is_kafka = isinstance(config.transport, KafkaTransport)
            remedy = _UNREADABLE_RECORD if is_kafka else streams.remedies[DecodeError.__name__]
            raise DecodeError(f"{error}: {remedy}") from error
    logger.info("query ended last_batch_id=%s", driver.last_batch_id)


def _durable_now(known: Mapping[tuple[str, str], LogOffset]) -> dict[str, WrittenBatch]:
    lsns: dict[str, int] = {}
    for (source, _), offset in known.items():
        lsns[source] = max(offset.tx_offset, lsns.get(source, 0))
    return {source: WrittenBatch(flushed_lsn=lsn) for source, lsn in lsns.items()}


def _shapes(config: WriteConfig, status: LiveWriteStatus) -> AbstractContextManager[object]:
    """The thread that counts the shapes, if the status is served."""
    return nullcontext() if config.status is None else ShapesThread(config.sink, status)


def _cuts(
    spark: SparkSession, config: WriteConfig, driver: WriteDriver, streams: EventStreams, status: LiveWriteStatus
) -> AbstractContextManager[object]:
    """The thread that records cuts, if there is an ack table."""
    if config.acks is None or not isinstance(streams, KafkaEventStreams):
        return nullcontext()
    topic_ids = {role: streams.topic_id(role) for role in ROLES}
    return cuts_thread(spark, config, driver, topic_ids, status.note_cuts)


def _consumed(
    spark: SparkSession, config: WriteConfig, driver: WriteDriver, streams: EventStreams
) -> AbstractContextManager[object]:
    """The thread that finds out when the state can forget removed shapes, for streams in Kafka."""
    if not isinstance(streams, KafkaEventStreams):
        return nullcontext()
    topics = {role: streams.topic_id(role) for role in ROLES}
    return ConsumedThread(driver.consumed, lambda: topic_offsets(spark, config, topics, lambda: driver.done_batch_id))


def _snapshots(spark: SparkSession, config: WriteConfig, status: LiveWriteStatus) -> AbstractContextManager[object]:
    """The thread that takes snapshots while the job writes; raises ``ConfigError`` if a package is missing."""
    live = status.snapshots
    if config.tables is None or live is None:
        return nullcontext()
    try:
        # Only this needs psycopg: a job without snapshots works without it.
        from flushtracker.shape_log.snapshot.delta_snapshots import log_snapshots  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"snapshot: auto needs {error.name}, which is not installed; run: pip install 'flushtracker[snapshot]'"
        ) from error
    snapshots = SnapshotConfig(config.tables, config.sink, int(SNAPSHOT_PERIOD_S * 1000))
    return SnapshotThread(lambda stop: log_snapshots(spark, snapshots, stop, live=live).run(), live)


def _committed_writers(spark: SparkSession, checkpoint: str, config: WriteConfig) -> CommittedWriters:
    """The last committed batch's state of all shapes."""
    batch_id, rows = read_state_rows(spark, checkpoint, config.state.shape_groups, ["packed"], REMEDIES)
    settings = WriterSettings(config.write_unit)
    shape_groups = config.state.shape_groups
    found = CommittedWriters(batch_id, lambda shape_id: str(shape_group_of(shape_id, shape_groups)))
    for row in rows:
        if row["shape_group"] != NO_SHAPE:
            found.add(row["shape_group"], WriterGroup(row["source"], settings, bytes(row["packed"])))
    return found


def _claim_log(spark: SparkSession, checkpoint: str, log: str, claim: LogClaim, committed: CommittedWriters) -> LogEnds:
    """Claim the log; return the ends of logs that are ahead of the state."""
    kept = StoredEnds(spark, checkpoint)
    before, ends = kept.read()
    number = claim.take(before, last_rows(committed.durable))
    if not claim.covers(before, committed.batch_id):
        logger.info("reading where the logs end log=%s", log)
        ends = read_log_ends(spark, log)
    ends = unknown_ends(ends, committed)
    kept.write(number, ends)
    return ends
