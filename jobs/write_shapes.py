"""Entry point of ``flushtracker write`` for spark-submit."""

import sys

from flushtracker.cli import run

if __name__ == "__main__":
    run(["write", *sys.argv[1:]])
