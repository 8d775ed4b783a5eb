"""``flushtracker up``: runs all programs of the configuration on this machine until SIGTERM or Ctrl-C."""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import IO, Final

from flushtracker.errors import ConfigError
from flushtracker.operate.status.live_view import LiveView
from flushtracker.operate.status.overview_text import config_arguments
from flushtracker.operate.status.slot_view import SlotView
from flushtracker.operate.up.pipeline import STEP_S, running_pipeline
from flushtracker.operate.up.program_log import ProgramLog
from flushtracker.process.program import StopRequest, print_status

_NAME: Final = "flushtracker up"


def run(arguments: argparse.Namespace) -> int:
    """Run everything; the exit code is 0 after a stop, else that of the program that ended all."""
    stop = StopRequest()
    view = LiveView(partial(print_status, _NAME, log_format=arguments.log_format))
    options = ["--log-format", arguments.log_format, *(["--verbose"] if arguments.verbose else [])]
    services = {"kafka": arguments.with_kafka, "postgres": arguments.with_postgres}
    try:
        with ExitStack() as parts:
            log = ProgramLog(arguments.log_format, _output(arguments, parts))
            pipeline = parts.enter_context(
                running_pipeline(arguments.config, log.show, view.say, options=options, **services)
            )
            slot = None if arguments.view is None else SlotView.of_file(arguments.config)
            stop.interrupts = False
            show: Callable[[], None] | None = None
            while not stop.is_made:
                pipeline.step()
                if slot is not None and pipeline.has_rows:
                    show = show or parts.enter_context(view.shown(slot, config_arguments(arguments.config)))
                    show()
                time.sleep(STEP_S)
    except KeyboardInterrupt:
        view.say("stopped during startup")
    return 0


def _output(arguments: argparse.Namespace, parts: ExitStack) -> IO[str]:
    if arguments.view is None:
        return sys.stderr
    try:
        output: IO[str] = parts.enter_context(arguments.view.open("a"))
    except OSError as error:
        raise ConfigError(
            f"the output of all programs cannot be written to {arguments.view}: {error.strerror}"
        ) from error
    return output
