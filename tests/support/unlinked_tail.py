"""``python -m tests.support.unlinked_tail``: flushtracker with a server that links every client to its tail.

A fault for ``flushtracker conformance-loop`` to find: a client misses what was published before the tail began.
"""

import sys

from flushtracker.cli import run

if __name__ == "__main__":
    if "serve" in sys.argv:
        from flushtracker.serve.tail import tails

        tails._is_linked = lambda *_: True
    run()
