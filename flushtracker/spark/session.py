"""The Spark session of a job: its start, with only the settings that it needs, and its stop on SIGTERM and Ctrl-C.

Under spark-submit the JVM is the parent and receives the signal; by default it would tear Spark down mid-batch. So both
the interpreter and the JVM get a handler, and both only set a flag. Set the interpreter's first, before a JVM is
launched (:func:`~flushtracker.process.program.set_on_signals`): an exception at that point would leave the JVM running.
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from flushtracker.config.spark_config import HADOOP, SparkConfig
from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.jvm.checkpoint_jar import checkpoint_jar
from flushtracker.jvm.class_archive import spark_archive, use_archive
from flushtracker.jvm.jars import S3_JARS, SPARK_JARS
from flushtracker.jvm.java import check_java
from flushtracker.process.log_format import LogFormat
from flushtracker.process.program import StopFlag, set_on_signals
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.spark.object_stores import jar_sets, set_up_stores
from flushtracker.spark.session_checks import refuse_connect, require_versions

_LOG_CONFIG: Final[Mapping[LogFormat, Path]] = {
    "text": Path(__file__).with_name("log4j2.properties"),
    "json": Path(__file__).with_name("log4j2_json.properties"),
}

_ALWAYS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # No job needs batches without data, except the writers' job, which enables them for `flush: hold`.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # A table's log is small: the default of 50 tasks for it would take longer than the rest of a read.
    "spark.databricks.delta.snapshotPartitions": "2",
    # What a Python worker gets at a time: the default since Spark 4.1. Before, it was 256 MiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": "67108864",
}
_CLASS_PATH_END: Final = "SPARK_DIST_CLASSPATH"
"""The variable with what Spark's launcher appends to the class path of a JVM."""
_JARS_OF_USERS: Final = {"spark.jars", "spark.jars.packages"}
_LOCAL: Final = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
    # Jobs that share a session share its cores; jobs alone are not affected.
    "spark.scheduler.mode": "FAIR",
}


def start_session(
    app_name: str,
    shuffle_partitions: int,
    config: SparkConfig | None = None,
    paths: Sequence[str] = (),
    *,
    verbose: bool = False,
    log_format: LogFormat = "text",
) -> SparkSession:
    """Start Spark as spark-submit configures it, or else ``local[*]`` with the jars of :mod:`flushtracker.jvm.jars`.

    ``paths`` are what Spark itself reads and writes. Under spark-submit, the cluster's own configuration determines
    Spark's log.

    Raises:
        ConfigError: there is no usable Java, jars are missing, or the session is of another kind or version of Spark.
    """
    # This logger writes whole plans, including the options of a source, which can hold passwords.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(app_name).config("spark.sql.shuffle.partitions", str(shuffle_partitions))
    settings, config = dict(_ALWAYS), config or SparkConfig()
    refuse_connect(config.settings)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # Not started by spark-submit: no JVM runs yet.
        java, jars = check_java(), SPARK_JARS.paths()
        if os.pathsep in str(jars[0].parent):
            raise ConfigError(f"the jars are in {jars[0].parent}, which no class path can have: move them")
        # Unlike the classes of spark.jars, these can be archived.
        settings |= _LOCAL | {"spark.driver.extraClassPath": os.pathsep.join(map(str, jars))}
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if not _JARS_OF_USERS & config.settings.keys():
            _append_to_class_path(_jars_of_stores(paths))
        options = (_log_options(log_format, verbose=verbose), use_archive(spark_archive(jars, java)))
        if any(options):
            settings["spark.driver.extraJavaOptions"] = " ".join(filter(None, options))
    settings |= {name: value for name, value in config.settings.items() if not name.startswith(HADOOP)}
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except (*JAVA_ERRORS, Py4JError, OSError) as error:
        raise FlushtrackerError(f"Spark cannot start: {java_reason(error)}") from error
    require_versions(session)
    if not verbose:
        session.sparkContext.setLogLevel("ERROR")
    set_up_stores(session, config, paths)
    return session


def _jars_of_stores(paths: Sequence[str]) -> list[Path]:
    """Those that have the file systems of the paths; for S3 also ours, if it was compiled."""
    needed = jar_sets(paths)
    found = [jar for jars in needed for jar in jars.paths()]
    if S3_JARS in needed and (own := checkpoint_jar()).exists():
        found.append(own)
    return found


def _append_to_class_path(jars: Sequence[Path]) -> None:
    """At its end: in front of Spark's own jars, the class archive would not fit."""
    before = os.environ.get(_CLASS_PATH_END)
    if jars:
        os.environ[_CLASS_PATH_END] = os.pathsep.join([*([before] if before else []), *map(str, jars)])


def _log_options(log_format: LogFormat, *, verbose: bool) -> str:
    """The JVM's options for Spark's log on stderr; empty for Spark's own default."""
    if verbose and log_format == "text":
        return ""
    level = " -Dflushtracker.log.level=warn" if verbose else ""
    return f"-Dlog4j2.configurationFile={_LOG_CONFIG[log_format].as_uri()}{level}"


class _JvmHandler:
    """A ``sun.misc.SignalHandler`` in Python: py4j calls it back from the JVM's signal thread."""

    def __init__(self, stop: StopFlag) -> None:
        self._stop = stop

    def handle(self, _signal: Any) -> None:
        self._stop.set()

    class Java:
        implements: ClassVar = ["sun.misc.SignalHandler"]


def set_on_jvm_signals(stop: StopFlag, spark: SparkSession) -> None:
    """Set ``stop`` on the JVM's signals, and again on the interpreter's, whose handlers Spark has replaced."""
    set_on_signals(stop)
    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # pyspark has no types for it
    jvm = gateway.jvm
    for name in ("TERM", "INT"):
        jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal(name), _JvmHandler(stop))
