"""``flushtracker demo``: runs the demo with a live view.

At the end, once everything is acknowledged, each folded shape log must equal its query.
"""

import argparse
import math
import shlex
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from flushtracker.capture.capture_config import CaptureConfig
from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.operate.status.slot_view import SlotView
from flushtracker.postgres.connection import connect
from flushtracker.postgres.shape_rows import shape_rows
from flushtracker.process.program import StopRequest
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shape_log.table.shape_finder import ShapeFinder
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.trials.demo.services import LOG, Demo
from flushtracker.trials.demo.view import view
from flushtracker.trials.recordings.verify import differences

_PERIOD_S: Final = 1.0
_ADD_SHAPE_AFTER_S: Final = 20.0


def run(arguments: argparse.Namespace) -> int:
    """Run the demo until Ctrl-C, SIGTERM or the end of ``--seconds``, then compare the logs with the tables."""
    stop = StopRequest()
    console = Console()
    step = "startup"
    try:
        with Demo(
            arguments.data, _print_status, arguments.log_format, prefers_default_ports=console.is_terminal
        ) as demo:
            stop.interrupts = False
            config = demo.config
            slot = SlotView(config, [demo.status_url])
            _watch(demo, slot, stop, console, math.inf if arguments.seconds is None else arguments.seconds)
            step = "the check"
            stop = StopRequest()
            demo.stop_workload()
            _print_status("waiting until everything is acknowledged; Ctrl-C skips the check")
            await_ack(slot, demo.raise_failure)
            await_snapshots(config, demo.log, demo.raise_failure)
            _print_status(check_shapes(config, demo.log))
    except KeyboardInterrupt:
        _print_status(f"stopped during {step}")
    log = arguments.data.absolute() / LOG
    read = f"read a shape: {_command('read', '--log', log, 'orders-eu')}; " if log.exists() else ""
    _print_status(f"everything has stopped. Next: {read}your own database: flushtracker init --postgres URL")
    return 0


def _watch(demo: Demo, slot: SlotView, stop: StopRequest, console: Console, seconds: float) -> None:
    """Show the slot until a stop is requested, a part fails, or everything has run for ``seconds``. Adds a shape
    midway.
    """
    started = time.monotonic()
    end: float | None = None
    is_added = False
    with view(console, demo.config_file) as show:
        while not stop.is_made and (end is None or time.monotonic() < end):
            demo.raise_failure()
            # Capture must know the other shapes first: a new source takes all of them at once.
            if not is_added and time.monotonic() - started > _ADD_SHAPE_AFTER_S:
                demo.add_shape()
                is_added = True
            overview = slot.query()
            if demo.check_startup():
                if end is None:
                    end = time.monotonic() + seconds
                    _explain(demo)
                show(overview)
            time.sleep(_PERIOD_S)


def _explain(demo: Demo) -> None:
    """Explain the view before it is shown for the first time."""
    config = ("--config", demo.config_file)
    _print_status(f"below is what this prints: {_command('status', *config)}")
    _print_status("the shapes listed have not flushed everything; the first holds the ack, and so the retained WAL")
    _print_status(f"add a shape in another terminal: {_command('add-shape', demo.new_shape_file, *config)}")
    _print_status(f"the same on a page: {demo.status_url}")
    _print_status(f"a shape, for browsers, too: {demo.shapes_url}?shape=orders-eu&offset=-1")
    _print_status("orders-gold has a subquery: rows enter and leave it when a customer's level changes")
    _print_status("Ctrl-C stops everything and compares logs and tables")


def _command(*words: str | Path) -> str:
    """Format a flushtracker command that can be pasted into a shell."""
    return shlex.join(["flushtracker", *map(str, words)])


def _print_status(line: str) -> None:
    print(f"flushtracker demo: {line}", flush=True)


_TIMEOUT_S: Final = 90.0
_POLL_S: Final = 0.2


def await_ack(view: SlotView, raise_failure: Callable[[], None]) -> None:
    """Wait until everything that the server has written so far is acknowledged; raises ``FlushtrackerError``."""
    written_lsn: int | None = None
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        overview = view.query()
        if overview.slot.error is not None:
            raise overview.slot.error
        # Capture may not have created the slot yet.
        if written_lsn is None and overview.slot.value is not None:
            written_lsn = overview.slot.value.written_lsn
        if written_lsn is not None and overview.ack_lsn is not None and overview.ack_lsn >= written_lsn - 1:
            return
        raise_failure()
        if time.monotonic() > deadline:
            holders = () if overview.job_source is None else overview.job_source.holders
            held = f"; held back by {holders[0].shape_id}" if holders else ""
            raise FlushtrackerError(f"what was written last is not acknowledged after {_TIMEOUT_S:.0f} s{held}")
        time.sleep(_POLL_S)


def await_snapshots(config: CaptureConfig, log: Path, raise_failure: Callable[[], None]) -> None:
    """Wait until the writers know every shape and have its snapshot; raises ``FlushtrackerError``."""
    deadline = time.monotonic() + _TIMEOUT_S
    finder = ShapeFinder(str(log))
    for definition in load_shapes(config.shapes):
        while (reason := _reason_not_to_read(finder, definition.id)) is not None:
            raise_failure()
            if time.monotonic() > deadline:
                raise FlushtrackerError(f"after {_TIMEOUT_S:.0f} s: {reason}")
            time.sleep(_POLL_S)


def _reason_not_to_read(finder: ShapeFinder, shape_id: str) -> ConfigError | None:
    try:
        finder.find_rows(shape_id, None, None, typed=False, even_if_ended=False)
    except ConfigError as error:
        return error
    return None


def check_shapes(config: CaptureConfig, log: Path) -> str:
    """Compare every shape of the demo; returns the result as text, or raises ``FlushtrackerError`` if one differs."""
    shapes = {definition.id: definition for definition in load_shapes(config.shapes)}
    count = 0
    with closing(connect(config.postgres.connection)) as connection:
        for shape_id, rows, difference in differences(
            ShapeLogReader(str(log)), shapes, partial(shape_rows, connection)
        ):
            count += rows
            if difference is not None:
                raise FlushtrackerError(f"shape {shape_id} differs from its table: {difference}")
    return f"{len(shapes)} shapes: folding each log gives its query over the table, {count:,} rows in all"
