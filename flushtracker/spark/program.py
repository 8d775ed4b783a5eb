"""``flushtracker track``: the tracking job as a program, from its arguments to its exit code."""

import argparse
import logging
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError

from flushtracker.config.job_config import load_config
from flushtracker.errors import FlushtrackerError
from flushtracker.process.program import StopFlag, log_to_stderr, set_on_signals
from flushtracker.process.stop_deadline import exit_if_hung
from flushtracker.spark.session import set_on_jvm_signals, start_session
from flushtracker.spark.track_flushes_query import Recovery, track_flushes

STOP_TIMEOUT_S: Final = 60.0
"""Longer than an orderly stop takes, which waits for the running batch for half of it."""


def run(arguments: argparse.Namespace) -> int:
    """Track until everything is read, or until SIGTERM or Ctrl-C."""
    verbose: bool = arguments.verbose
    log_to_stderr()
    # py4j logs the driver's errors again, with a traceback; they are reported below.
    logging.getLogger("py4j").setLevel(logging.WARNING if verbose else logging.CRITICAL)
    recovery = Recovery(tuple(arguments.abandon)) if arguments.recover else None
    config = load_config(arguments.config)
    stop = StopFlag()
    set_on_signals(stop)
    exit_if_hung("flushtracker track", stop.is_set, STOP_TIMEOUT_S)
    try:
        spark = start_session("track_flushes", config.state.shuffle_partitions, verbose=verbose)
    except FlushtrackerError:
        if stop.is_set():  # The signal ended the JVM too, before its handler was set.
            return 0
        raise
    try:
        set_on_jvm_signals(stop, spark)
        if not stop.is_set():
            track_flushes(spark, config, stop, recovery)
    except (Py4JNetworkError, ConnectionError) as error:
        raise FlushtrackerError("Spark's JVM exited while the job was running; start again, nothing is lost") from error
    finally:
        # Without a JVM there is nothing to stop.
        with suppress(Py4JError, ConnectionError):
            spark.stop()
    return 0
