"""Entry point of ``flushtracker snapshot`` for spark-submit."""

import sys

from flushtracker.cli import run

if __name__ == "__main__":
    run(["snapshot", *sys.argv[1:]])
