"""Entry point of ``flushtracker capture`` for a checkout that is not installed."""

import sys

from flushtracker.cli import main

if __name__ == "__main__":
    sys.exit(main(["capture", *sys.argv[1:]]))
