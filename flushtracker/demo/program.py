"""``flushtracker demo``: runs the demo with a live view, from its arguments to its exit code."""

import argparse
import time
from contextlib import closing
from typing import Final

from rich.console import Console

from flushtracker.demo.samples import SlotWatch
from flushtracker.demo.services import Demo
from flushtracker.demo.view import view
from flushtracker.process.program import StopRequest

_PERIOD_S: Final = 0.5


def run(arguments: argparse.Namespace) -> int:
    """Run the demo until Ctrl-C, SIGTERM or ``--seconds``."""
    stop = StopRequest()
    console = Console()
    try:
        with Demo(arguments.data, _print_status) as demo:
            stop.interrupts = False
            _watch(demo, stop, console, arguments.seconds)
    except KeyboardInterrupt:
        _print_status("stopped during startup")
    _print_status("everything has stopped")
    return 0


def _watch(demo: Demo, stop: StopRequest, console: Console, seconds: float | None) -> None:
    """Show samples until a stop is requested, the time is up, or a part fails."""
    config = demo.config
    end = None if seconds is None else time.monotonic() + seconds
    with (
        closing(SlotWatch(config.postgres.connection, config.postgres.slot, config.acks)) as slot,
        view(console) as show,
    ):
        while not stop.is_made and (end is None or time.monotonic() < end):
            demo.raise_failure()
            show(slot.sample())
            time.sleep(_PERIOD_S)


def _print_status(line: str) -> None:
    print(f"flushtracker demo: {line}", flush=True)
