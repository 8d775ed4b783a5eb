"""For functions that Spark calls in its Python workers: errors for the driver, and less garbage collection.

A state function catches a group's error and returns a row of the kind :data:`ERROR` with the name of its class and its
message. So the whole batch reaches the driver, which raises the error before it does anything else.
"""

import gc
from itertools import count
from typing import Final

from pyspark.sql import Row

from flushtracker import errors

ERROR: Final = "error"
"""The ``kind`` of such a row: ``report`` names the error's class, ``reason`` is its message."""

_CALLS: Final = 64
"""A worker's first calls, after which it has imported what it needs."""

_calls = count()


def raise_first_error(rows: list[Row]) -> None:
    """Raise a group's error with its own class: the first by place, so that every run reports the same one."""
    failed = sorted((row["reason"], row["report"]) for row in rows if row["kind"] == ERROR)
    if failed:
        reason, name = failed[0]
        raise getattr(errors, name)(reason)


def spare_imports() -> None:
    """Exclude from garbage collection what exists now. Only a worker's first calls do anything.

    A worker collects all garbage after each task (``pyspark.daemon``). With the objects that pandas and other packages
    create on import, which stay, this takes 50 ms, and a batch has several tasks.
    """
    if next(_calls) < _CALLS:
        gc.freeze()
