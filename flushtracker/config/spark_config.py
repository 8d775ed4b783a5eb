"""``spark`` of a job's configuration: further settings of its Spark session, by their full names."""

from dataclasses import dataclass, field
from typing import Final

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.storage_config import StorageConfig, read_storage
from flushtracker.config.strict_yaml import YamlMapping

HADOOP: Final = "spark.hadoop."
"""Settings with this prefix are Hadoop's. They are not in a JVM's command line."""

_SECRET_WORDS: Final = ("secret", "password", "token", "accesskey", "access.key")
"""What Spark itself redacts in its logs and pages, by default."""

_OWN: Final = {
    "spark.driver.extraClassPath": "the jars",
    "spark.driver.extraJavaOptions": "the class archive and the log",
    "spark.sql.catalog.spark_catalog": "Delta",
    "spark.sql.extensions": "Delta",
    "spark.sql.shuffle.partitions": "state.shuffle_partitions",
    "spark.sql.streaming.noDataMicroBatches.enabled": "flush: hold",
}
"""Settings of the programs themselves, and their purpose."""


@dataclass(frozen=True, slots=True)
class SparkConfig:
    """The settings of a job's Spark session: its object stores, and further settings."""

    storage: StorageConfig = field(default_factory=StorageConfig)
    settings: SecretOptions = field(default_factory=SecretOptions)


def read_spark(root: YamlMapping) -> SparkConfig:
    """``storage`` and ``spark`` of a job's file; raises ``ConfigError``."""
    storage, section = read_storage(root), root.optional_mapping("spark")
    if section is None:
        return SparkConfig(storage)
    for name in section:
        if not name.startswith("spark."):
            raise section.error(name, "is not the full name of a Spark setting, which begins with spark.")
        if name in _OWN:
            raise section.error(name, f"is set by this program, for {_OWN[name]}; leave it out")
        if not name.startswith(HADOOP) and any(word in name.lower() for word in _SECRET_WORDS):
            raise section.error(
                name,
                "may be a secret, and would be in the command line of Spark's JVM; set it in spark-defaults.conf",
            )
    return SparkConfig(storage, SecretOptions(section.scalars()))
