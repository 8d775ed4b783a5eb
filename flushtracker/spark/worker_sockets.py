"""Unix domain sockets between Spark and its Python workers, instead of TCP.

Over TCP a task whose input is small waits 40 ms for it: Spark writes it in pieces, each of which Nagle's algorithm
holds back until the piece before is acknowledged, and the worker's side delays that.
"""

import atexit
import os
import shutil
import tempfile
from typing import Final

_MAX_LENGTH: Final = 103
"""Of a socket's path, in bytes, on every system."""
_NAME_LENGTH: Final = len("/.00000000-0000-0000-0000-000000000000.sock")


def socket_settings() -> dict[str, str]:
    """Spark's settings for sockets in a new directory, removed at exit; none if its path is too long for a socket.

    Who can connect to a worker can run code in it, and there is no password: so only this user can enter the directory.
    """
    if len(os.fsencode(tempfile.gettempdir())) + len("/flushtracker-00000000") + _NAME_LENGTH > _MAX_LENGTH:
        return {}
    folder = tempfile.mkdtemp(prefix="flushtracker-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}
