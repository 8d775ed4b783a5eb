"""For functions that run in Spark's Python workers: passes errors to the driver, and reduces garbage collection.

A state function catches a group's error and returns a row of the kind :data:`ERROR` with the name of its class and its
message. So the whole batch reaches the driver, which raises the error before it does anything else.

An input error is the same wherever it is read. A storage error may be limited to one machine, so it fails the task as
long as Spark will restart it, perhaps elsewhere (:func:`is_last_attempt`).
"""

import gc
from itertools import count
from typing import Final

from pyspark import TaskContext
from pyspark.sql import Row, SparkSession

from flushtracker import errors

ERROR: Final = "error"
"""The ``kind`` of such a row: ``report`` names the error's class, ``reason`` is its message."""

_CALLS: Final = 64
"""The number of a worker's first calls, after which it has imported what it needs."""

_calls = count()


def raise_first_error(rows: list[Row]) -> None:
    """Raise a group's error with its own class: the first by place, so that every run reports the same one."""
    failed = sorted((row["reason"], row["report"]) for row in rows if row["kind"] == ERROR)
    if failed:
        reason, name = failed[0]
        raise getattr(errors, name)(reason)


def task_attempts(spark: SparkSession) -> int:
    """How often Spark starts a failing task, by its settings; once on a local master."""
    return int(spark.sparkContext._jsc.sc().taskScheduler().maxTaskFailures())


def is_last_attempt(attempts: int) -> bool:
    """In a task: whether Spark may give it up if it fails now, with at most ``attempts`` attempts."""
    context = TaskContext.get()
    # Killed attempts are numbered, but do not count.
    return context is None or context.attemptNumber() + 1 >= attempts


def spare_imports() -> None:
    """Exclude existing objects from garbage collection. Only a worker's first calls do anything.

    A worker collects all garbage after each task (``pyspark.daemon``). With the permanent objects that pandas and other
    packages create on import, this takes 50 ms, and a batch has several tasks.
    """
    if next(_calls) < _CALLS:
        gc.freeze()
