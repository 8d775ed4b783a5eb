"""Entry point of ``flushtracker capture``, next to the tracking job's."""

import sys

from flushtracker.cli import main

if __name__ == "__main__":
    sys.exit(main(["capture", *sys.argv[1:]]))
