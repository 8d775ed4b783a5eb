"""The Spark session of a job: the few settings that it needs; all else is Spark's, or what spark-submit was told."""

import logging
import os
import sys
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from flushtracker.errors import FlushtrackerError
from flushtracker.jvm.jars import SPARK_JARS
from flushtracker.jvm.java import check_java
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason

_LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties")

_ALWAYS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Nothing here needs another batch without data: time is watched on the driver.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
_LOCAL: Final = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}


def start_session(app_name: str, shuffle_partitions: int, *, verbose: bool = False) -> SparkSession:
    """Start Spark: what spark-submit was told, else ``local[*]`` with the jars of :mod:`flushtracker.jvm.jars`.

    Raises:
        ConfigError: there is no usable Java, or the jars are missing.
    """
    # It logs whole plans, and with them the options of a source, which hold passwords.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(app_name).config("spark.sql.shuffle.partitions", str(shuffle_partitions))
    settings = dict(_ALWAYS)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # Not started by spark-submit: the JVM is still to be launched.
        check_java()
        settings |= _LOCAL | {"spark.jars": ",".join(str(path) for path in SPARK_JARS.paths())}
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if not verbose:
            settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}"
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except (*JAVA_ERRORS, Py4JError, OSError) as error:
        raise FlushtrackerError(f"Spark does not start: {java_reason(error)}") from error
    if not verbose:
        session.sparkContext.setLogLevel("ERROR")
    return session
