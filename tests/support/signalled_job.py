"""``flushtracker track`` that receives a signal, with its JVM and workers, in the middle of its first batch.

``python -m tests.support.signalled_job SIGTERM --config FILE``. The process must lead its own process group.
"""

import os
import signal
import sys
import time

from flushtracker.cli import run
from flushtracker.tracking.acks.ack_table import AckRow, AckTable

_append = AckTable.append


def _signalled_append(table: AckTable, *rows: AckRow) -> int:
    os.killpg(0, signal.Signals[sys.argv[1]])
    # Long enough for a shutdown that does not wait for the batch.
    time.sleep(2)
    return _append(table, *rows)


if __name__ == "__main__":
    AckTable.append = _signalled_append  # type: ignore[method-assign, assignment]  # the point of this program
    run(["track", *sys.argv[2:]])
