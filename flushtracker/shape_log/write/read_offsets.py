"""``ReadOffsets``: the Kafka offsets up to which a query has read its topics, from its checkpoint's offset log."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import WriteConfig
from flushtracker.errors import StateError
from flushtracker.shape_log.write.consumed_changes import TopicOffsets
from flushtracker.spark.hadoop_files import HadoopFiles, checkpoint_path
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.spark.kafka_admin import KafkaAdmin


class ReadOffsets:
    """The offsets read by the query of ``checkpoint``, whose log keeps the last hundred batches."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._files = HadoopFiles(spark, checkpoint)
        self._last: tuple[int, dict[str, dict[int, int]]] | None = None

    def after(self, batch_id: int) -> dict[str, dict[int, int]] | None:
        """By topic and partition, the Kafka offset up to which this batch and all earlier ones have read, if known.

        Raises ``StateError`` if the checkpoint cannot be read.
        """
        if self._last is None or self._last[0] != batch_id:
            try:
                content = self._files.read(f"offsets/{batch_id}")
            except JAVA_ERRORS as error:
                reason = java_reason(error)
                raise StateError(f"offsets in checkpoint {self._files.folder} cannot be read: {reason}") from error
            self._last = None if content is None else (batch_id, parse_offsets(content))
        return None if self._last is None else self._last[1]


def parse_offsets(content: bytes) -> dict[str, dict[int, int]]:
    """The offsets in a file of the offset log: a version, Spark's own values, and the topics' offsets.

    >>> parse_offsets(b'v1\\n{"batchWatermarkMs":0}\\n{"shapes":{"0":7},"changes":{"0":2}}')
    {'shapes': {0: 7}, 'changes': {0: 2}}
    """
    try:
        _, _, line = content.splitlines()
        topics = json.loads(line)
        return {topic: {int(partition): int(end) for partition, end in ends.items()} for topic, ends in topics.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise StateError(f"offsets of a batch are not those of topics: {content!r:.200}") from error


@contextmanager
def topic_offsets(
    spark: SparkSession, config: WriteConfig, topic_ids: Mapping[str, str], done_batch_id: Callable[[], int]
) -> Iterator[TopicOffsets]:
    """The state of the topics with these ids, by role; usable inside the block. Raises as :class:`KafkaAdmin`."""
    transport = config.transport
    if not isinstance(transport, KafkaTransport):
        raise TypeError("these are looks at topics")
    topics = transport.streams
    offsets = ReadOffsets(spark, checkpoint_path(config.state.checkpoint))
    with KafkaAdmin(spark, transport) as admin:

        def ends() -> Mapping[str, Mapping[int, int]]:
            return {role: admin.ends(topics[role], topic_id) for role, topic_id in topic_ids.items()}

        def read() -> Mapping[str, Mapping[int, int]] | None:
            found = offsets.after(done_batch_id())
            return None if found is None else {role: found.get(topic, {}) for role, topic in topics.items()}

        yield TopicOffsets(ends, read)
