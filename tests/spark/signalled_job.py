"""``jobs/track_flushes.py`` that is sent a signal, with its JVM and workers, in the middle of its first batch.

``python -m tests.spark.signalled_job SIGTERM --config FILE``. It must be the leader of a process group of its own.
"""

import os
import signal
import sys
import time

from flushtracker.delta.ack_table import AckRow, AckTable
from jobs.track_flushes import main

_append = AckTable.append


def _signalled_append(table: AckTable, row: AckRow) -> bool:
    os.killpg(0, signal.Signals[sys.argv[1]])
    # Long enough for whatever would not wait for the batch.
    time.sleep(2)
    return _append(table, row)


if __name__ == "__main__":
    AckTable.append = _signalled_append  # type: ignore[method-assign, assignment]  # the point of this program
    sys.exit(main(sys.argv[2:]))
