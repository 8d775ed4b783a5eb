"""Entry point of ``flushtracker write`` for spark-submit."""

import sys

from flushtracker.cli import main

if __name__ == "__main__":
    sys.exit(main(["write", *sys.argv[1:]]))
