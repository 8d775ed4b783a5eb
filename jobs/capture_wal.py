"""Entry point of ``flushtracker capture``, next to the tracking job's."""

import sys

from flushtracker.cli import run

if __name__ == "__main__":
    run(["capture", *sys.argv[1:]])
