"""``--recover``: where a new checkpoint begins, and what it skips."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.config.job_config import KafkaTransport
from flushtracker.errors import BrokerError
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.spark.kafka_refusals import masked, refused_request
from flushtracker.spark.kafka_streams import KafkaEventStreams, counts, source_of
from flushtracker.tracking.recovery_plan import RecoveryPlan, SourceRecords, Start, plan_recovery

logger = logging.getLogger(__name__)

_START: Any = "source STRING, start BOOLEAN, lsn BIGINT, follows STRUCT<tx_offset: BIGINT>"


def read_recovery_plan(
    source: KafkaEventStreams, transport: KafkaTransport, last_acks: Mapping[str, int], abandoned: Collection[str]
) -> RecoveryPlan:
    """Read the topic of fragments from its earliest record to its end, twice, and log what is skipped.

    Raises:
        GapError, ConfigError: as :func:`~flushtracker.tracking.recovery_plan.plan_recovery`.
        ConfigError: Kafka refuses the client.
        BrokerError: the topic cannot be read to its end.
    """
    topic = transport.fragments
    logger.info("recovery: reading all of topic %s for the last start of each source", topic)
    try:
        rows = _summary(source)
        ends = {
            partition: max(row["end"] for row in rows if row["partition"] == partition)
            for partition in {r["partition"] for r in rows}
        }
        starts = plan_recovery(_source_records(rows), ends, last_acks, abandoned, topic)
        _log_skipped(source, starts)
    except JAVA_ERRORS as error:
        if refused := refused_request(str(error), transport):
            raise refused from error
        reason = masked(java_reason(error), transport)
        raise BrokerError(f"topic {topic} cannot be read for the recovery: {reason}") from error
    return starts


def _summary(streams: KafkaEventStreams) -> list[Row]:
    """One row for each source and partition; the source is null for records that name none."""
    event = F.from_json("value", _START)
    start = F.struct(
        "offset", F.unix_millis("timestamp").alias("timestamp_ms"), event["follows"]["tx_offset"].alias("follows")
    )
    is_start = event["start"] & event["follows"]["tx_offset"].isNotNull()
    return (
        streams.fragments()
        .groupBy(source_of(F.col("value")).alias("source"), "partition")
        .agg(
            (F.max("offset") + 1).alias("end"),
            F.coalesce(F.max(event["lsn"]), F.lit(-1)).alias("last_lsn"),
            F.max(F.when(is_start, start)).alias("start"),
        )
        .collect()
    )


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
    skipped = (
        streams.fragments().where(~counts(starts)).groupBy(source_of(F.col("value")).alias("source")).count().collect()
    )
    for row in sorted(skipped, key=lambda row: row["source"] or ""):
        if row["source"] is None:
            logger.warning("recovery: skips %d records that name no source and so cannot be read", row["count"])
        else:
            logger.info("recovery: source=%s skips %d fragments", row["source"], row["count"])
