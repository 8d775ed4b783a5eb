"""``flushtracker demo``: runs the demo with a live view.

At the end, once everything is acknowledged, each folded shape log must equal its query.
"""

import argparse
import math
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from flushtracker.operate.status.live_view import LiveView
from flushtracker.operate.status.slot_view import SlotView
from flushtracker.operate.up.pipeline import STEP_S
from flushtracker.process.program import StopRequest
from flushtracker.trials.demo.check import await_ack, check_all
from flushtracker.trials.demo.demo import CONF, LOG, Demo, running_demo

_ADD_SHAPE_AFTER_S: Final = 10.0


def run(arguments: argparse.Namespace) -> int:
    """Run the demo until Ctrl-C, SIGTERM or the end of ``--seconds``, then compare the logs with the tables."""
    stop = StopRequest()
    view = LiveView(_print_line)
    folder: Path = arguments.data.absolute()
    started = time.monotonic()

    def say_when(line: str) -> None:
        view.say(f"[{time.monotonic() - started:.0f} s] {line}")

    step = "startup"
    is_terminal = sys.stdout.isatty()
    try:
        with running_demo(folder, say_when, arguments.log_format, prefers_default_ports=is_terminal) as demo:
            stop.interrupts = False
            _await_rows(demo, stop)
            slot = SlotView(demo.config, [demo.status_url])
            _explain(demo)
            seconds = math.inf if arguments.seconds is None else arguments.seconds
            with view.shown(slot, ("--config", str(demo.config_file))) as show:
                _watch(demo, stop, seconds, show, say_when)
            step = "the check"
            stop = StopRequest()
            demo.stop_workload()
            _print_line("waiting until everything is acknowledged; Ctrl-C skips the check")
            await_ack(slot, demo.step)
            _print_line(check_all(demo.config, demo.log, demo.step))
    except KeyboardInterrupt:
        _print_line(f"stopped during {step}")
    log = folder / LOG
    read = f"read a shape: {_command('read', '--log', log, 'orders-eu')}; " if log.exists() else ""
    _print_line(f"next: {read}your own database: flushtracker init --postgres URL")
    return 0


def _await_rows(demo: Demo, stop: StopRequest) -> None:
    """Until everything runs; raises ``KeyboardInterrupt`` if a stop is requested before."""
    while not demo.pipeline.has_rows:
        if stop.is_made:
            raise KeyboardInterrupt
        demo.step()
        time.sleep(STEP_S)


def _watch(demo: Demo, stop: StopRequest, seconds: float, show: Callable[[], None], say: Callable[[str], None]) -> None:
    """Show the slot until a stop is requested, a part fails, or ``seconds`` have passed. Adds a shape midway."""
    started = time.monotonic()
    is_added = False
    while not stop.is_made and time.monotonic() < started + seconds:
        demo.step()
        if not is_added and time.monotonic() > started + min(_ADD_SHAPE_AFTER_S, seconds / 2):
            say(f"added the shape orders-us as {demo.add_shape()}; a snapshot gives it the rows that orders has")
            is_added = True
        show()
        time.sleep(STEP_S)


def _explain(demo: Demo) -> None:
    """Explain the view before it is shown for the first time."""
    _print_line("below is what that command prints: the shapes listed have not flushed everything")
    _print_line("the first one holds the ack, and so the retained WAL")
    add = _command("add-shape", CONF / "new_shape.yaml", "--config", demo.config_file)
    _print_line(f"add a shape in another terminal: {add}")
    _print_line("orders-gold has a subquery: rows enter and leave it when a customer's level changes")
    _print_line("Ctrl-C stops everything and compares logs and tables")


def _command(*words: str | Path) -> str:
    """Format a flushtracker command that can be pasted into a shell."""
    return shlex.join(["flushtracker", *map(str, words)])


def _print_line(line: str) -> None:
    print(f"flushtracker demo: {line}", flush=True)
