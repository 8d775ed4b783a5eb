"""``EventStreams``: the streams that a query reads, over any transport; with an implementation for files."""

from collections.abc import Mapping
from functools import reduce
from typing import ClassVar, Final, Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.config.transport import FilesTransport, Transport
from flushtracker.errors import ConfigError, DecodeError, GapError
from flushtracker.spark.hadoop_files import spark_path
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.spark.kafka_streams import KafkaEventStreams
from flushtracker.spark.recovery_plan import RecoveryPlan

# Spark ignores files older than the newest by more than this; an ignored file would be a silent gap.
_NEVER: Final = "36500d"


class EventStreams(Protocol):
    """Some streams of events, ready to be read.

    ``remedies`` maps the class name of an input error to its remedy, and ``resend`` is the remedy for a gap in the
    state.
    """

    remedies: ClassVar[Mapping[str, str]]
    resend: ClassVar[str]

    def identity(self) -> dict[str, str]:
        """What identifies the streams, by name. A checkpoint's offsets are meaningless for other streams."""

    def read(self, starts: RecoveryPlan) -> DataFrame:
        """A streaming DataFrame ``(stream, value, place)``, one row for each event; fragments begin at ``starts``.

        ``value`` has the event's bytes unchanged. For a deleted flush it is null, and ``place`` is the key.
        """


class FilesEventStreams:
    """An :class:`~flushtracker.spark.input_streams.EventStreams` of directories."""

    resend: ClassVar[str] = (
        "restart capture, which resends everything unconfirmed, and start over with a new checkpoint and only the "
        "files written since"
    )
    remedies: ClassVar[Mapping[str, str]] = {
        GapError.__name__: f"put the missing fragments back in front of this one, or {resend}",
        DecodeError.__name__: "fix it in place and start again",
    }

    def __init__(self, spark: SparkSession, config: FilesTransport) -> None:
        self._spark = spark
        self._config = config

    def identity(self) -> dict[str, str]:
        return {"format": self._config.format} | {
            role: spark_path(directory) for role, directory in self._config.streams.items()
        }

    def read(self, starts: RecoveryPlan) -> DataFrame:
        """The streams from their first file; ``starts`` is empty, since ``--recover`` is only for Kafka.

        Raises:
            ConfigError: a stream's directory does not exist.
        """
        assert not starts.by_partition  # noqa: S101  track_flushes refuses --recover for files
        streams = [self._read_directory(directory, role) for role, directory in self._config.streams.items()]
        return reduce(DataFrame.unionByName, streams)

    def _read_directory(self, directory: str, stream: str) -> DataFrame:
        reader = self._spark.readStream.format("text").option("maxFileAge", _NEVER)
        try:
            lines = reader.option("maxFilesPerTrigger", self._config.max_files_per_trigger).load(spark_path(directory))
        except JAVA_ERRORS as error:
            if isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND":
                raise ConfigError(
                    f"files.path/{stream}: there is no directory {directory}; create it, or first start the program "
                    f"that writes to it"
                ) from error
            raise ConfigError(
                f"files.path/{stream}: {directory} cannot be read as a directory: {java_reason(error)}"
            ) from error
        # Spark's text may hold any bytes; where Spark interprets it, it replaces invalid UTF-8.
        value = F.col("value").cast("binary").alias("value")
        return lines.select(F.lit(stream).alias("stream"), value, F.col("_metadata.file_path").alias("place"))


def open_streams(
    spark: SparkSession, config: Transport, kafka_options: Mapping[str, str] | None = None
) -> EventStreams:
    """The streams that the configuration names; ``kafka_options`` are the job's own defaults for Spark's source.

    Raises:
        ConfigError: a topic does not exist, or could lose records.
        BrokerError: Kafka does not respond.
    """
    if isinstance(config, FilesTransport):
        return FilesEventStreams(spark, config)
    return KafkaEventStreams(spark, config, kafka_options)
