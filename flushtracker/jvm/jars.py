"""The sets of jars, each locked in an XML file: ``python -m flushtracker.jvm.jars spark broker`` fetches two of them.

:mod:`flushtracker.jvm.ivy_jars` names the environment variables for other sources.
"""

import sys
from pathlib import Path
from typing import Final

from flushtracker.errors import ConfigError
from flushtracker.jvm.checkpoint_jar import build_checkpoint_jar
from flushtracker.jvm.ivy_jars import JarSet


def _jars(name: str, owner: str, megabytes: int, folder: str, *, of_spark: bool = True) -> JarSet:
    lock = Path(__file__).with_name(f"{name}_jars.xml")
    return JarSet(lock, owner, megabytes, f"python -m flushtracker.jvm.jars {name}", folder, of_spark)


SPARK_JARS: Final = _jars("spark", "Spark", 25, "")
"""The jars that the installed Spark needs besides its own, directly in ``.jars``."""

BROKER_JARS: Final = _jars("broker", "the broker", 43, "kafka/", of_spark=False)
"""A whole Kafka broker, for tests and demonstrations, in ``.jars/kafka``."""

S3_JARS: Final = _jars("s3", "Spark on S3", 14, "s3/")
"""Hadoop's S3A file system, for jobs with a checkpoint or a shape log on S3, in ``.jars/s3``."""

ABFS_JARS: Final = _jars("abfs", "Spark on Azure", 1, "abfs/")
"""Hadoop's ABFS file system, for checkpoints and shape logs on Azure's Data Lake Storage, in ``.jars/abfs``."""

GCS_JARS: Final = _jars("gcs", "Spark on Google Cloud Storage", 36, "gcs/")
"""Hadoop's own file system for Google Cloud Storage, which only Spark 4.2 has, in ``.jars/gcs``."""

_SETS: Final = {"spark": SPARK_JARS, "broker": BROKER_JARS, "s3": S3_JARS, "abfs": ABFS_JARS, "gcs": GCS_JARS}


def main(names: list[str]) -> int:
    """Fetch the named sets, silently if they already exist; return the exit code."""
    if not names or set(names) - _SETS.keys():
        sys.stderr.write(f"flushtracker: name the jars to fetch, one or more of: {', '.join(_SETS)}\n")
        return ConfigError.exit_code
    try:
        for name in names:
            _SETS[name].fetch()
            if name == "s3":
                build_checkpoint_jar()
    except ConfigError as error:
        sys.stderr.write(f"flushtracker: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
