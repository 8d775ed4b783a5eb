"""Entry point of ``flushtracker track`` for spark-submit."""

import sys

from flushtracker.cli import run

if __name__ == "__main__":
    run(["track", *sys.argv[1:]])
