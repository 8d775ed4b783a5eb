"""Settings of a job's Spark session: its object stores, and further ones by their full names."""

from dataclasses import dataclass, field
from typing import Final

from flushtracker.config.one_file import OneFile
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
    "spark.sql.shuffle.partitions": "shuffle_partitions",
    "spark.sql.streaming.noDataMicroBatches.enabled": "flush: hold",
}
"""Settings of the programs themselves, and their purpose."""


@dataclass(frozen=True, slots=True)
class SparkConfig:
    """The settings of a job's Spark session: its object stores, and further settings."""

    storage: StorageConfig = field(default_factory=StorageConfig)
    settings: SecretOptions = field(default_factory=SecretOptions)


def read_spark(file: OneFile, program: str) -> SparkConfig:
    """What a job's session has of ``storage``, ``spark``, and the ``spark`` of its own section; or ``ConfigError``."""
    for section in (file.root, file.section(program)):
        if (settings := section.optional_mapping("spark")) is not None:
            _check(settings)
    return SparkConfig(read_storage(file.section("storage")), SecretOptions(file.options("spark", f"{program}.spark")))


def _check(settings: YamlMapping) -> None:
    for name in settings:
        if not name.startswith("spark."):
            raise settings.error(name, "is not the full name of a Spark setting, which begins with spark.")
        if name in _OWN:
            raise settings.error(name, f"is set by this program, for {_OWN[name]}; leave it out")
        if not name.startswith(HADOOP) and any(word in name.lower() for word in _SECRET_WORDS):
            raise settings.error(
                name, "may be a secret, and would be in the command line of Spark's JVM; set it in spark-defaults.conf"
            )
