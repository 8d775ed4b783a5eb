"""Show flushtracker at work on this machine: a real server and broker, capture, tracker, writers and a workload.

Shows how far the WAL is written, received, acknowledged and confirmed, how much
of it the slot retains, and which shape holds it back. Ctrl-C stops everything.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from flushtracker.command_line import run_program
from flushtracker.demo.services import Demo
from flushtracker.demo.slot_watch import SlotWatch
from flushtracker.demo.stop_request import StopRequest
from flushtracker.demo.view import view

_EPILOG = """\
exit codes: 0 stopped by Ctrl-C, SIGTERM or --seconds; 2 the arguments or the
machine; else that of the part that has failed
"""
_CHECKOUT: Final = Path(__file__).parents[1]
_PERIOD_S: Final = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        default=_CHECKOUT / "data" / "demo",
        metavar="DIR",
        help="for all data and logs, emptied at the start (default: data/demo)",
    )
    add("--seconds", type=_seconds, metavar="N", help="stop by itself so long after everything is started")
    add("--verbose", action="store_true", help="a traceback with an error")
    arguments = parser.parse_args(argv)
    return run_program("demo", partial(_demo, arguments.data, arguments.seconds), verbose=arguments.verbose)


def _seconds(text: str) -> float:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return float(text)


def _demo(folder: Path, seconds: float | None) -> int:
    stop = StopRequest()
    console = Console()
    try:
        with Demo(folder, _CHECKOUT, _say) as demo:
            stop.interrupts = False
            _watch(demo, stop, console, seconds)
    except KeyboardInterrupt:
        _say("stopped while it was starting")
    _say("everything is stopped")
    return 0


def _watch(demo: Demo, stop: StopRequest, console: Console, seconds: float | None) -> None:
    """Show how things stand until it is to stop, or a part fails."""
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


def _say(line: str) -> None:
    print(f"demo: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
