"""How an error on an executor reaches the driver: as a row of the state function's output.

The state function catches a group's error and returns a row of the kind :data:`ERROR` with the name of its class and
its message. So the batch reaches the driver whole, which raises the error before it does anything else.
"""

from typing import Final

from pyspark.sql import Row

from flushtracker import errors

ERROR: Final = "error"
"""The ``kind`` of such a row: ``report`` names the error's class, ``reason`` is its message."""


def raise_first_error(rows: list[Row]) -> None:
    """Raise a group's error with its own class: the first by place, so that every run reports the same one."""
    failed = sorted((row["reason"], row["report"]) for row in rows if row["kind"] == ERROR)
    if failed:
        reason, name = failed[0]
        raise getattr(errors, name)(reason)
