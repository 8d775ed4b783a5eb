"""``--recover``: finds where the new checkpoint begins, and logs what it skips."""

import logging
from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.config.streams import FRAGMENTS
from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import BrokerError
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason, java_text
from flushtracker.spark.kafka_failures import kafka_failure, masked
from flushtracker.spark.kafka_streams import KafkaEventStreams, counts
from flushtracker.spark.recovery_plan import RecoveryPlan, SourceRecords, Start, plan_recovery
from flushtracker.tracking.job.rows import HEAD_SCHEMA, parse_heads
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.source_name import successors

logger = logging.getLogger(__name__)


def read_recovery_plan(
    source: KafkaEventStreams, transport: KafkaTransport, last_acks: Mapping[str, int], abandoned: Collection[str]
) -> RecoveryPlan:
    """Read the topic of fragments from its earliest record to its end, twice, and log what is skipped.

    Raises:
        GapError, ConfigError: as :func:`~flushtracker.spark.recovery_plan.plan_recovery`.
        ConfigError: Kafka refuses the client or the read.
        BrokerError: the topic cannot be read to its end.
    """
    topic = transport.streams[FRAGMENTS]
    logger.info("recovery: reading all of topic %s for the last start of each source", topic)
    try:
        rows = _summary(source)
        ends = {
            partition: max(row["end"] for row in rows if row["partition"] == partition)
            for partition in {r["partition"] for r in rows}
        }
        starts = plan_recovery(_source_records(rows), ends, last_acks, abandoned, topic)
        log_abandoned(_source_records(rows), last_acks, abandoned)
        _log_skipped(source, starts)
    except JAVA_ERRORS as error:
        reason = masked(java_reason(error), transport)
        raise kafka_failure(java_text(error), transport) or BrokerError(
            f"topic {topic} cannot be read for the recovery: {reason}"
        ) from error
    return starts


def _summary(streams: KafkaEventStreams) -> list[Row]:
    """One row for each source and partition; the source of malformed records is null."""
    start = F.struct("offset", "timestamp_ms", "follows")
    return (
        _heads(streams)
        .groupBy("source", "partition")
        .agg(
            (F.max("offset") + 1).alias("end"),
            F.coalesce(F.max("lsn"), F.lit(-1)).alias("last_lsn"),
            F.max(F.when(F.col("start"), start)).alias("start"),
        )
        .collect()
    )


def _heads(streams: KafkaEventStreams) -> DataFrame:
    """The heads of all records in the topic of fragments."""
    records = streams.fragments().select("partition", "offset", F.unix_millis("timestamp"), "value")
    return records.mapInArrow(parse_heads, HEAD_SCHEMA)


def _source_records(rows: list[Row]) -> list[SourceRecords]:
    return [
        SourceRecords(
            row["source"],
            row["partition"],
            row["last_lsn"],
            None if row["start"] is None else Start(*row["start"]),
        )
        for row in rows
        if row["source"] is not None
    ]


def log_abandoned(records: Collection[SourceRecords], last_acks: Mapping[str, int], abandoned: Collection[str]) -> None:
    """Log what is given up with each abandoned source; all of them have records."""
    retired = successors(record.source for record in records)
    for source in sorted(set(abandoned)):
        logger.warning(
            "recovery: abandons source=%s last_ack=%s last_lsn=%s; what is in between is never acknowledged%s",
            source,
            format_lsn(last_acks[source]) if source in last_acks else "none",
            format_lsn(max(record.last_lsn for record in records if record.source == source)),
            "" if source in retired else ", and no source has taken its place, so no capture may run for it again",
        )


def _log_skipped(streams: KafkaEventStreams, starts: RecoveryPlan) -> None:
    for partition, part in sorted(starts.by_partition.items()):
        for name, kafka_offset in sorted(part.sources.items()):
            logger.info(
                "recovery: source=%s partition=%d begins at Kafka offset %d%s",
                name,
                partition,
                kafka_offset,
                ", after all existing records" if kafka_offset == part.end else "",
            )
    skipped = _heads(streams).where(~counts(starts, F.col("source"))).groupBy("source").count().collect()
    for row in sorted(skipped, key=lambda row: row["source"] or ""):
        if row["source"] is None:
            logger.warning("recovery: skips %d records that cannot be read", row["count"])
        else:
            logger.info("recovery: source=%s skips %d fragments", row["source"], row["count"])
