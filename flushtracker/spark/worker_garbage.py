"""Spares Spark's Python workers most of the garbage collection that they do after each task."""

import gc
from itertools import count
from typing import Final

_TASKS: Final = 16
"""Of a worker: by then it has imported what it needs."""

_tasks = count()


def spare_imports() -> None:
    """Let the collector ignore what there is now, if this is one of a worker's first tasks; called at its start.

    After each task a worker collects all garbage before it takes the next one (``pyspark.daemon``). With all that
    pandas and the other packages have made at import, and that stays, this takes 50 ms, and a batch has several tasks.
    """
    if next(_tasks) < _TASKS:
        gc.freeze()
