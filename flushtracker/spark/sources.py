"""Where events come from: each source gives ``(stream, value, place)``, one row for each event."""

from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.config import SourceConfig
from flushtracker.errors import ConfigError
from flushtracker.spark.java_reason import JAVA_ERRORS, java_reason
from flushtracker.spark.paths import spark_path
from flushtracker.spark.rows import FLUSHES, FRAGMENTS

# Spark forgets files that are older than the newest by more than this. A forgotten one would be a silent hole.
_NEVER: Final = "36500d"


def read_events(spark: SparkSession, source: SourceConfig) -> DataFrame:
    """The streaming DataFrame of both streams.

    Raises:
        ConfigError: a stream's directory does not exist.
    """
    fragments = _read_files(spark, source.fragments, FRAGMENTS, source.max_files_per_trigger)
    flushes = _read_files(spark, source.flushes, FLUSHES, source.max_files_per_trigger)
    return fragments.unionByName(flushes)


def _read_files(spark: SparkSession, directory: str, stream: str, max_files: int) -> DataFrame:
    reader = spark.readStream.format("text").option("maxFilesPerTrigger", max_files).option("maxFileAge", _NEVER)
    try:
        lines = reader.load(spark_path(directory))
    except JAVA_ERRORS as error:
        if isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND":
            raise ConfigError(
                f"source.{stream}: there is no directory {directory}; create it, or start what writes there first"
            ) from error
        raise ConfigError(
            f"source.{stream}: {directory} cannot be read as a directory: {java_reason(error)}"
        ) from error
    return lines.select(F.lit(stream).alias("stream"), "value", F.col("_metadata.file_path").alias("place"))
