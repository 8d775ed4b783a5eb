"""``flushtracker track`` that is sent a signal, with its JVM and workers, in the middle of its first batch.

``python -m tests.support.signalled_job SIGTERM --config FILE``. It must be the leader of a process group of its own.
"""

import os
import signal
import sys
import time

from flushtracker.cli import main
from flushtracker.delta.ack_table import AckRow, AckTable

_append = AckTable.append


def _signalled_append(table: AckTable, row: AckRow) -> bool:
    os.killpg(0, signal.Signals[sys.argv[1]])
    # Long enough for whatever would not wait for the batch.
    time.sleep(2)
    return _append(table, row)


if __name__ == "__main__":
    AckTable.append = _signalled_append  # type: ignore[method-assign, assignment]  # the point of this program
    sys.exit(main(["track", *sys.argv[2:]]))
