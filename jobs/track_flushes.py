"""Track flushes: fragments and flush notifications in, transaction-aligned LSN acks in a Delta table out."""

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from flushtracker.config import load_config
from flushtracker.errors import FlushtrackerError
from flushtracker.spark.session import start_session
from flushtracker.spark.stop_signals import stop_event
from flushtracker.spark.track_flushes_query import track_flushes

_EPILOG = """\
exit codes: 0 done, or stopped by SIGTERM or Ctrl-C after the running batch; 1 anything not foreseen;
2 the configuration or the machine; 3 bad input: a hole, or a fragment that cannot be read; 4 the checkpoint;
5 a Delta table
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="such as conf/track_flushes.yaml")
    parser.add_argument("--verbose", action="store_true", help="Spark's own log, and a traceback with an error")
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # py4j logs what the driver raises once more, with a traceback; it is reported below.
    logging.getLogger("py4j").setLevel(logging.WARNING if arguments.verbose else logging.CRITICAL)
    try:
        config = load_config(arguments.config)
        spark = start_session("track_flushes", config.state.shuffle_partitions, verbose=arguments.verbose)
        try:
            track_flushes(spark, config, stop_event(spark))
        finally:
            spark.stop()
    except Exception as error:  # noqa: BLE001 (the program's edge: whatever it is ends in one line and an exit code)
        if arguments.verbose:
            traceback.print_exc()
        known = isinstance(error, FlushtrackerError)
        message = str(error) if known else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        print(f"track_flushes: {message}", file=sys.stderr)
        return error.exit_code if isinstance(error, FlushtrackerError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
