"""The edge of a program: its log, its exit code and, for an error, one line on stderr."""

import logging
import sys
import traceback
from collections.abc import Callable

from flushtracker.errors import FlushtrackerError


def run_program(name: str, program: Callable[[], int], *, verbose: bool) -> int:
    """Call ``program`` for its exit code; an error is printed as ``name: message``, a traceback only if ``verbose``."""
    try:
        return program()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001  the edge: nothing may pass it as a traceback
        if verbose:
            traceback.print_exc()
        known = isinstance(error, FlushtrackerError)
        message = str(error) if known else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        print(f"{name}: {message}", file=sys.stderr)
        return error.exit_code if isinstance(error, FlushtrackerError) else 1


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send the log to stderr, one line for each event."""
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s")
