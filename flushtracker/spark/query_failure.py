"""What ended a query, from what Spark says about it: the broker, lost records, another driver, or something else."""

from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from flushtracker.config import JobConfig, KafkaSource
from flushtracker.errors import BrokerError, FlushtrackerError, HoleError, StateError
from flushtracker.spark.java_reason import java_reason

_AWAY: Final = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.errors.NetworkException",
    "Cannot fetch record for offset",
)
_LOST: Final = ("KAFKA_DATA_LOSS", "OffsetOutOfRangeException", "Some data may have been lost")
_CONCURRENT: Final = ("CONCURRENT_STREAM_LOG_UPDATE",)


def query_failure(query: StreamingQuery, error: Exception, config: JobConfig) -> FlushtrackerError:
    """The error to report for a query that Spark itself ended with ``error``."""
    causes = _causes(query)
    text = "\n".join([str(error), *causes])
    if any(name in text for name in _CONCURRENT):
        return StateError(
            f"another driver writes to checkpoint {config.state.checkpoint}, so this one ends; let only one run"
        )
    if isinstance(config.source, KafkaSource):
        if any(name in text for name in _LOST):
            return HoleError(f"Kafka no longer has records that were not read yet: {_first(causes, _LOST)}")
        if any(name in text for name in _AWAY):
            return BrokerError(f"Kafka at {config.source.bootstrap_servers} does not answer: {_first(causes, _AWAY)}")
    return FlushtrackerError(f"the query ended: {causes[-1] if causes else java_reason(error)}")


def _causes(query: StreamingQuery) -> list[str]:
    """Class and first line of each exception, from the query's own down to the root."""
    failure: Any = query._jsq.exception()
    if not failure.isDefined():
        return []
    causes, cause = [], failure.get().getCause()
    while cause is not None:
        message = (cause.getMessage() or "").strip().partition("\n")[0]
        causes.append(f"{cause.getClass().getName()}: {message}")
        cause = cause.getCause()
    return causes


def _first(causes: list[str], names: tuple[str, ...]) -> str:
    return next((cause for cause in causes if any(name in cause for name in names)), causes[-1] if causes else "")
