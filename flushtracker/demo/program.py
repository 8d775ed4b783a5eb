"""``flushtracker demo``: runs the demo with a live view, from its arguments to its exit code."""

import argparse
import time
from contextlib import closing
from typing import Final

from rich.console import Console

from flushtracker.demo.final_check import await_ack, await_snapshots, check_shapes
from flushtracker.demo.samples import SlotWatch
from flushtracker.demo.services import Demo
from flushtracker.demo.view import view
from flushtracker.process.program import StopRequest

_PERIOD_S: Final = 0.5
_ADD_SHAPE_AFTER_S: Final = 20.0


def run(arguments: argparse.Namespace) -> int:
    """Run the demo until Ctrl-C, SIGTERM or ``--seconds``, then compare the logs with the tables."""
    stop = StopRequest()
    console = Console()
    step = "startup"
    try:
        with Demo(arguments.data, _print_status, arguments.log_format) as demo:
            stop.interrupts = False
            config = demo.config
            watch = SlotWatch(config.postgres.connection, config.postgres.slot, config.acks, demo.status_url)
            with closing(watch) as slot:
                _watch(demo, slot, stop, console, arguments.seconds)
                step = "the check"
                stop = StopRequest()
                demo.stop_workload()
                _print_status("waiting until everything is acknowledged; Ctrl-C skips the check")
                await_ack(slot, demo.raise_failure)
            await_snapshots(config, demo.log, demo.raise_failure)
            _print_status(check_shapes(config, demo.log))
    except KeyboardInterrupt:
        _print_status(f"stopped during {step}")
    _print_status("everything has stopped")
    return 0


def _watch(demo: Demo, slot: SlotWatch, stop: StopRequest, console: Console, seconds: float | None) -> None:
    """Show samples until a stop is requested, the time is up, or a part fails; a shape is added on the way."""
    started = time.monotonic()
    end = None if seconds is None else started + seconds
    is_added = False
    with view(console) as show:
        while not stop.is_made and (end is None or time.monotonic() < end):
            demo.raise_failure()
            # Not before capture has the others: a new source takes all at once.
            if not is_added and time.monotonic() - started > _ADD_SHAPE_AFTER_S:
                demo.add_shape()
                is_added = True
            sample = slot.sample()
            demo.check_startup(has_ack=sample.ack_lsn is not None)
            show(sample)
            time.sleep(_PERIOD_S)


def _print_status(line: str) -> None:
    print(f"flushtracker demo: {line}", flush=True)
