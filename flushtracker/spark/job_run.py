"""A Spark job as a program: the checks before Spark starts, which takes seconds, and its session, signals and end."""

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from flushtracker.config.spark_config import SparkConfig
from flushtracker.config.storage_path import is_uri, local_folder
from flushtracker.config.transport import KafkaTransport, Transport
from flushtracker.delta.conditional_writes import require_conditional_writes
from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.kafka.broker_check import check_brokers
from flushtracker.process.log_format import LogFormat
from flushtracker.process.program import StopFlag, log_to_stderr, set_on_signals
from flushtracker.process.stop_deadline import exit_if_hung
from flushtracker.spark.session import set_on_jvm_signals, start_session

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 60.0
"""Twice as long as an orderly stop waits for the running batch."""

_CLUSTER: Final = {"PYSPARK_GATEWAY_PORT", "HADOOP_CONF_DIR", "YARN_CONF_DIR"}
"""Set in the environment of a job under spark-submit, or where Hadoop is configured."""


class JobSession(NamedTuple):
    """What a job needs of its Spark session. ``paths`` are those that Spark itself reads and writes."""

    shuffle_partitions: int
    config: SparkConfig
    paths: Sequence[str] = ()


class Job(NamedTuple):
    """A job before its Spark starts.

    ``check`` is called before that, and may raise. ``run`` returns once the job has ended by itself, or the event is
    set.
    """

    session: JobSession
    check: Callable[[], None]
    run: Callable[[SparkSession, Event], None]


def run_job(name: str, job: Job, *, verbose: bool, log_format: LogFormat = "text") -> int:
    """Run ``flushtracker NAME`` until the job ends by itself, or on SIGTERM or Ctrl-C.

    Raises:
        FlushtrackerError: the job's own, or Spark cannot start, or its JVM has exited.
    """
    log_to_stderr(log_format=log_format)
    # py4j logs the driver's errors again, with a traceback; the program already reports them.
    logging.getLogger("py4j").setLevel(logging.WARNING if verbose else logging.CRITICAL)
    stop = StopFlag()
    set_on_signals(stop)
    exit_if_hung(f"flushtracker {name}", stop.is_set, STOP_TIMEOUT_S, log_format)
    job.check()
    try:
        spark = start_session(f"flushtracker {name}", *job.session, verbose=verbose, log_format=log_format)
    except FlushtrackerError:
        if stop.is_set():  # The signal ended the JVM too, before its handler was set.
            return 0
        raise
    try:
        set_on_jvm_signals(stop, spark)
        if not stop.is_set():
            job.run(spark, stop)
    except (Py4JNetworkError, ConnectionError) as error:
        raise FlushtrackerError("Spark's JVM exited while the job was running; start again, nothing is lost") from error
    finally:
        # Without a JVM there is nothing to stop.
        with suppress(Py4JError, ConnectionError):
            spark.stop()
    return 0


def check_start(
    transport: Transport | None, folders: Mapping[str, str], storage_options: Mapping[str, str] | None = None
) -> None:
    """Check that the ``folders``, by configuration key, can be written; warn if no broker responds.

    A write to a local folder is tried. For tables in an object store (below ``storage``), only conditional writes are
    checked.

    On a cluster, a path without a scheme is in Spark's default file system, which may not be the local one. Only Spark
    knows that, so such a path only causes a warning.

    Raises:
        ConfigError: a folder can neither be created nor written, or its object store replaces commits.
    """
    for key, path in folders.items():
        if key.startswith("storage"):
            require_conditional_writes(key, path, storage_options or {})
        refusal = _refusal(key, path)
        if refusal is not None and (is_uri(path) or not _CLUSTER & os.environ.keys()):
            raise refusal
        if refusal is not None:
            logger.warning("%s; ignore this if %s is in Spark's default file system, which is not local", refusal, path)
    if isinstance(transport, KafkaTransport):
        security = transport.options.get("kafka.security.protocol", "PLAINTEXT")
        check_brokers(transport.bootstrap_servers, security, transport.retry_timeout_ms / 1000)


def _refusal(key: str, path: str) -> ConfigError | None:
    """Why a local folder, or its nearest existing ancestor, cannot be written; ``None`` if it can."""
    local = local_folder(path)
    if local is None:
        return None
    folder = Path(local)
    try:
        while not folder.exists():
            folder = folder.parent
        # Permissions do not show it: root has them all, and the file system may be read-only. Readers ignore names that
        # begin with a dot.
        Path(tempfile.mkdtemp(prefix=".flushtracker-", dir=folder)).rmdir()
    except OSError as error:
        reason = error.strerror or str(error)
        at = "" if folder == Path(path).absolute() else f" at {folder}"
        return ConfigError(
            f"{key}: {path} cannot be written: {reason}{at}; name a folder that can be created and written"
        )
    return None
