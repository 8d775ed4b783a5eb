"""Chooses the class with which Spark writes a checkpoint's files, unless the user has chosen one."""

import logging
from typing import Any, Final

from pyspark.sql import SparkSession

from flushtracker.jvm.checkpoint_jar import CLASS, checkpoint_jar, streaming_package
from flushtracker.jvm.jars import S3_JARS
from flushtracker.spark.hadoop_files import HadoopFiles

logger = logging.getLogger(__name__)

FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"


def choose_file_manager(spark: SparkSession, checkpoint: str) -> None:
    """Choose the class for the checkpoint's storage, unless the user has chosen one.

    Spark's default creates and renames files through ``FileContext``. On a local disk, Hadoop without its native
    library then runs ``chmod`` and ``readlink``: 150 processes for a small batch. On S3, each file takes twenty-four
    requests.
    """
    local = local_file_manager(spark.version)
    if spark.conf.get(FILE_MANAGER, None) not in {None, local, CLASS}:
        return
    files = HadoopFiles(spark, checkpoint)
    jvm: Any = spark.sparkContext._jvm
    if str(spark.sparkContext.master).startswith("local") and files.is_local():
        # Hadoop's checksum file would be renamed after the file: a kill in between leaves one that does not match.
        files.write_no_checksums()
        spark.conf.set(FILE_MANAGER, local)
    elif files.is_on_s3a() and jvm.org.apache.spark.util.Utils.classIsLoadable(CLASS):
        spark.conf.set(FILE_MANAGER, CLASS)
    else:
        if files.is_on_s3a():
            logger.warning(
                "each file of the checkpoint takes 24 requests rather than 1 or 2, because Spark lacks the jar %s: "
                "`%s` makes it",
                *(checkpoint_jar().name, S3_JARS.command),
            )
        spark.conf.unset(FILE_MANAGER)


def local_file_manager(spark_version: str) -> str:
    """Spark's class that renames files through Hadoop's ``FileSystem``."""
    return f"{streaming_package(spark_version)}.FileSystemBasedCheckpointFileManager"


def default_file_manager(spark_version: str) -> str:
    """Spark's default class for other storages."""
    return f"{streaming_package(spark_version)}.FileContextBasedCheckpointFileManager"
