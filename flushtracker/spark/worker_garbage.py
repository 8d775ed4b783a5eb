"""Spares Spark's Python workers most of the garbage collection that they do after each task."""

import gc
from itertools import count
from typing import Final

_CALLS: Final = 64
"""Of a worker's first tasks; by then it has imported what it needs."""

_calls = count()


def spare_imports() -> None:
    """Let the collector ignore what there is now; for the functions that Spark calls in its workers.

    After each task a worker collects all garbage before it takes the next one (``pyspark.daemon``). With all that
    pandas and the other packages have made at import, and that stays, this takes 50 ms, and a batch has several tasks.
    Only a worker's first calls do anything.
    """
    if next(_calls) < _CALLS:
        gc.freeze()
