"""``EventSource``: what the query needs of a transport, with one form for each ``source.format``."""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from pyspark.sql import DataFrame, SparkSession

from flushtracker.config import FilesSource, SourceConfig
from flushtracker.fragment_starts import FragmentStarts
from flushtracker.spark.files_source import FilesEventSource
from flushtracker.spark.kafka_source import KafkaEventSource


class EventSource(Protocol):
    """Two streams of events, ready to be read.

    ``remedies`` says what to do about an error of the input, by the name of its class.
    """

    remedies: ClassVar[Mapping[str, str]]

    def identity(self) -> dict[str, str]:
        """What a checkpoint can only go on with, by name: its offsets mean nothing elsewhere."""

    def read(self, starts: FragmentStarts) -> DataFrame:
        """A streaming DataFrame ``(stream, value, place)``, one row for each event; fragments begin at ``starts``."""


def open_source(spark: SparkSession, config: SourceConfig) -> EventSource:
    """The source that the configuration names.

    Raises:
        ConfigError: it is not there, or not fit.
        BrokerError: Kafka does not answer.
    """
    return FilesEventSource(spark, config) if isinstance(config, FilesSource) else KafkaEventSource(spark, config)
