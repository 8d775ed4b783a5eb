"""A storage that never answers, and ``flushtracker track`` with an ack table that hangs once its first batch appends.

``python -m tests.support.hung_storage SECONDS --config FILE``: SECONDS is how long the program may take to stop.
"""

import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from flushtracker.cli import run
from flushtracker.spark import job_run
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.object_store import store_options


@contextmanager
def silent_object_store() -> Iterator[tuple[socket.socket, Mapping[str, str]]]:
    """An object store that never answers a request, to accept connections of, and the options of a table in it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server, store_options(server.getsockname()[1])


def _hang(_table: AckTable, *_rows: AckRow) -> NoReturn:
    sys.stderr.write("hanging\n")
    while True:
        threading.Event().wait()


if __name__ == "__main__":
    job_run.STOP_TIMEOUT_S = float(sys.argv[1])  # type: ignore[misc]  # final, but for this program
    AckTable.append = _hang  # type: ignore[method-assign, assignment]  # the point of this program
    run(["track", *sys.argv[2:]])
