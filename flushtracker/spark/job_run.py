"""A Spark job as a program: its session, its signals and its end."""

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from flushtracker.errors import FlushtrackerError
from flushtracker.process.log_format import LogFormat
from flushtracker.process.program import StopFlag, log_to_stderr, set_on_signals
from flushtracker.process.stop_deadline import exit_if_hung
from flushtracker.spark.session import set_on_jvm_signals, start_session

STOP_TIMEOUT_S: Final = 60.0
"""Longer than an orderly stop takes, which waits for the running batch for half of it."""


def run_job(
    name: str,
    shuffle_partitions: int,
    job: Callable[[SparkSession, Event], None],
    check: Callable[[], None],
    *,
    verbose: bool,
    log_format: LogFormat = "text",
) -> int:
    """Run ``flushtracker NAME`` until the job ends by itself, or on SIGTERM or Ctrl-C.

    ``check`` is called before Spark starts, and may raise.

    Raises:
        FlushtrackerError: the job's own, or Spark cannot start, or its JVM has gone.
    """
    log_to_stderr(log_format=log_format)
    # py4j logs the driver's errors again, with a traceback; they are reported by the program.
    logging.getLogger("py4j").setLevel(logging.WARNING if verbose else logging.CRITICAL)
    stop = StopFlag()
    set_on_signals(stop)
    exit_if_hung(f"flushtracker {name}", stop.is_set, STOP_TIMEOUT_S, log_format)
    check()
    try:
        spark = start_session(f"flushtracker {name}", shuffle_partitions, verbose=verbose, log_format=log_format)
    except FlushtrackerError:
        if stop.is_set():  # The signal ended the JVM too, before its handler was set.
            return 0
        raise
    try:
        set_on_jvm_signals(stop, spark)
        if not stop.is_set():
            job(spark, stop)
    except (Py4JNetworkError, ConnectionError) as error:
        raise FlushtrackerError("Spark's JVM exited while the job was running; start again, nothing is lost") from error
    finally:
        # Without a JVM there is nothing to stop.
        with suppress(Py4JError, ConnectionError):
            spark.stop()
    return 0
