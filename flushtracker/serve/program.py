"""``flushtracker serve``: the HTTP server as a program, from its arguments to its exit code."""

import argparse
import logging
from typing import Final

from flushtracker.config.serve_config import load_serve_config
from flushtracker.process.clock import now_ms
from flushtracker.process.program import log_to_stderr
from flushtracker.process.stop_deadline import exit_if_hung
from flushtracker.serve.body import PageFile
from flushtracker.serve.live_serve_status import LiveServeStatus
from flushtracker.serve.server import Served, run_server
from flushtracker.status.http.status_server import serving

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 30.0


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    log_to_stderr(logging.DEBUG if arguments.verbose else logging.INFO, arguments.log_format)
    config = load_serve_config(arguments.config)
    served = Served(config)
    # A wrong path, or no folder for temporary files, is an error at once; a storage that fails later is retried.
    served.parts.reads.open()
    PageFile()
    # A thread that hangs in a storage would keep the process alive.
    exit_if_hung("flushtracker serve", lambda: served.parts.poller.is_closed, STOP_TIMEOUT_S, arguments.log_format)
    live = LiveServeStatus(served, now_ms())
    with serving(config.status, live.read):
        run_server(config, served, lambda url: logger.info("serving url=%s log=%s", url, config.sink.log))
    logger.info("stopped")
    return 0
