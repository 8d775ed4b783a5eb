"""``python -m flushtracker``: the command, from wherever the package is."""

import sys

from flushtracker.cli import main

sys.exit(main())
