"""Entry point of ``flushtracker track`` for spark-submit."""

import sys

from flushtracker.cli import main

if __name__ == "__main__":
    sys.exit(main(["track", *sys.argv[1:]]))
