"""``flushtracker up``: runs all programs of the configuration on this machine until SIGTERM or Ctrl-C."""

import argparse
import sys
import time
from functools import partial
from typing import Final

from flushtracker.operate.up.pipeline import STEP_S, running_pipeline
from flushtracker.operate.up.program_log import ProgramLog
from flushtracker.process.program import StopRequest, print_status

_NAME: Final = "flushtracker up"


def run(arguments: argparse.Namespace) -> int:
    """Run everything; the exit code is 0 after a stop, else that of the program that ended all."""
    stop = StopRequest()
    say = partial(print_status, _NAME, log_format=arguments.log_format)
    options = ["--log-format", arguments.log_format, *(["--verbose"] if arguments.verbose else [])]
    services = {"kafka": arguments.with_kafka, "postgres": arguments.with_postgres}
    log = ProgramLog(arguments.log_format, sys.stderr)
    try:
        with running_pipeline(arguments.config, log.show, say, options=options, **services) as pipeline:
            stop.interrupts = False
            while not stop.is_made:
                pipeline.step()
                time.sleep(STEP_S)
    except KeyboardInterrupt:
        say("stopped during startup")
    return 0
