"""Entry point of ``flushtracker snapshot`` for spark-submit."""

import sys

from flushtracker.cli import main

if __name__ == "__main__":
    sys.exit(main(["snapshot", *sys.argv[1:]]))
