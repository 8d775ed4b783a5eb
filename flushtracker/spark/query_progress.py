"""Spark's report on a query: whether it is running, how far it is behind its sources, and the size of its state.

The figures are those of its last batch with data; Spark has no others.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from flushtracker.spark.java_errors import JAVA_ERRORS

_NO_DATA: Final = "Waiting for data to arrive"
"""The status message of a query between triggers, when the last one found nothing new."""
_STATE_SIZE: Final = "stateOnCurrentVersionSizeBytes"
"""The custom metric of Spark's default state store; ``memoryUsedBytes`` also counts older versions."""


class QueryProgress(NamedTuple):
    """``is_running``: a batch was committed, or there was nothing to read. Unknown figures are ``None``."""

    is_running: bool = False
    records_behind: int | None = None
    state_bytes: int | None = None


def read_progress(query: StreamingQuery, *, has_run: bool) -> QueryProgress:
    """The current progress, empty if the JVM does not respond. ``has_run``: the query was running before."""
    try:
        progress = query.lastProgress
        is_running = query.isActive and (has_run or progress is not None or has_read_everything(query))
    except (*JAVA_ERRORS, Py4JError, ConnectionError):
        return QueryProgress()
    if progress is None:
        return QueryProgress(is_running)
    return QueryProgress(is_running, records_behind(progress), state_bytes(progress))


def has_read_everything(query: StreamingQuery) -> bool:
    """Whether Kafka has returned the end of each partition, and the query has read up to there."""
    status = query.status
    return status["message"] == _NO_DATA and not status["isTriggerActive"]


def records_behind(progress: Mapping[str, Any]) -> int | None:
    """The number of records that the last batch left in the topics; ``None`` without Kafka.

    >>> kafka = {"description": "KafkaV2[Subscribe[a]]", "endOffset": '{"a":{"0":7}}', "latestOffset": '{"a":{"0":9}}'}
    >>> records_behind({"sources": [kafka]}), records_behind({"sources": [{"description": "FileStreamSource[a]"}]})
    (2, None)
    """
    behind = None
    for source in progress["sources"]:
        if source["description"].startswith("Kafka"):
            read, latest = json.loads(source["endOffset"]) or {}, json.loads(source["latestOffset"]) or {}
            behind = (behind or 0) + sum(
                max(kafka_offset - read.get(topic, {}).get(partition, 0), 0)
                for topic, partitions in latest.items()
                for partition, kafka_offset in partitions.items()
            )
    return behind


def state_bytes(progress: Mapping[str, Any]) -> int | None:
    """The memory of the state, as estimated by the state store.

    >>> state_bytes({"stateOperators": [{"memoryUsedBytes": 9, "customMetrics": {_STATE_SIZE: 5}}]})
    5
    """
    operators = progress["stateOperators"]
    if not operators:
        return None
    return sum(int(each["customMetrics"].get(_STATE_SIZE, each["memoryUsedBytes"])) for each in operators)
