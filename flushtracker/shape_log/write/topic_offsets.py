"""Finds out from Kafka and the checkpoint how far the writers' job has read its topics."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import WriteConfig
from flushtracker.shape_log.write.consumed_changes import TopicOffsets
from flushtracker.shape_log.write.read_offsets import ReadOffsets
from flushtracker.spark.hadoop_files import checkpoint_path
from flushtracker.spark.kafka_admin import KafkaAdmin


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
