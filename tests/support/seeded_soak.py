"""``main``: the command line of a soak that plays so many of something from one seed; and the lines that it prints."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flushtracker.errors import FlushtrackerError


def main(description: str | None, soaks: Mapping[str, Callable[[Path, int, int], None]]) -> None:
    """Call the chosen one of ``soaks`` with a new folder, how often, and the seed; each is an option, by its name.

    After a violation, the folder is kept.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    for name in soaks:
        chosen.add_argument(f"--{name}", dest=name, type=int)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flushtracker-"))
    folder.chmod(0o755)
    try:
        for name, soak in soaks.items():
            if count := vars(arguments)[name]:
                soak(folder, count, arguments.seed)
    except (AssertionError, FlushtrackerError) as error:
        sys.exit(f"violated with seed {arguments.seed}; all data and logs are in {folder}: {error}")
    shutil.rmtree(folder, ignore_errors=True)


def report(started: float, line: str) -> None:
    """Print a line after how long it has taken since ``started``, by the monotonic clock."""
    print(f"{time.monotonic() - started:.0f}s {line}", flush=True)  # noqa: T201  a program prints
