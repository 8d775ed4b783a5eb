"""Track flushes: fragments and flush notifications in, transaction-aligned LSN acks in a Delta table out."""

import argparse
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event

from py4j.protocol import Py4JError, Py4JNetworkError

from flushtracker.command_line import run_program
from flushtracker.config import load_config
from flushtracker.errors import FlushtrackerError
from flushtracker.spark.session import start_session
from flushtracker.spark.stop_signals import set_on_jvm_signals, set_on_signals
from flushtracker.spark.track_flushes_query import Recovery, track_flushes

_EPILOG = """\
exit codes: 0 done, or stopped by SIGTERM or Ctrl-C after the running batch;
1 anything not foreseen; 2 the configuration or the machine; 3 bad input: a
hole, or a fragment that cannot be read; 4 the checkpoint; 5 a Delta table;
6 Kafka does not answer
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="such as conf/track_flushes.yaml")
    parser.add_argument(
        "--recover",
        action="store_true",
        help="put the checkpoint aside, begin with what capture sent since its last start; for one start, not for good",
    )
    parser.add_argument(
        "--abandon",
        action="append",
        default=[],
        metavar="SOURCE",
        help="with --recover: skip all that is there of a source for which no capture will run again; may be repeated",
    )
    parser.add_argument("--verbose", action="store_true", help="Spark's own log, and a traceback with an error")
    arguments = parser.parse_args(argv)
    if arguments.abandon and not arguments.recover:
        parser.error("--abandon is only for --recover")
    recovery = Recovery(tuple(arguments.abandon)) if arguments.recover else None
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # py4j logs what the driver raises once more, with a traceback; it is reported below.
    logging.getLogger("py4j").setLevel(logging.WARNING if arguments.verbose else logging.CRITICAL)
    program = partial(_track_flushes, arguments.config, recovery, verbose=arguments.verbose)
    return run_program("track_flushes", program, verbose=arguments.verbose)


def _track_flushes(config_file: Path, recovery: Recovery | None, *, verbose: bool) -> int:
    config = load_config(config_file)
    stop = Event()
    set_on_signals(stop)
    try:
        spark = start_session("track_flushes", config.state.shuffle_partitions, verbose=verbose)
    except FlushtrackerError:
        if stop.is_set():  # The signal ended the JVM too, before it could be told otherwise.
            return 0
        raise
    try:
        set_on_jvm_signals(stop, spark)
        if not stop.is_set():
            track_flushes(spark, config, stop, recovery)
    except (Py4JNetworkError, ConnectionError) as error:
        raise FlushtrackerError("Spark's JVM has ended under the job; start again, nothing is lost") from error
    finally:
        # Without a JVM there is nothing to stop.
        with suppress(Py4JError, ConnectionError):
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
