"""``flushtracker capture``: the capture process, from its arguments to its exit code."""

import argparse
import logging
from functools import partial

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.capture_loop import CaptureLoop
from flushtracker.capture.creation import create_missing
from flushtracker.kafka.topic_admin import require_topics
from flushtracker.kafka.topic_rules import ROLES
from flushtracker.process.program import StopFlag, log_to_stderr, print_status, set_on_signals


def run(arguments: argparse.Namespace) -> int:
    """Capture until SIGTERM or Ctrl-C."""
    log_to_stderr(logging.DEBUG if arguments.verbose else logging.INFO, arguments.log_format)
    config = load_capture_config(arguments.config)
    stop = StopFlag()
    set_on_signals(stop)
    if arguments.create:
        create_missing(config, partial(print_status, "flushtracker capture", log_format=arguments.log_format))
    else:
        require_topics(config.kafka, ROLES)
    CaptureLoop(config, stop, new_epoch=arguments.new_epoch).run()
    return 0
