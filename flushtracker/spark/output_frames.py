"""``output_frame``: rows that a Python worker returns to Spark, as a frame."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd


def output_frame(rows: Sequence[tuple[object, ...]], names: Sequence[str]) -> pd.DataFrame:
    """A frame of at least one row, in a single block of objects.

    A batch has a frame for each group of shapes, most with a row or two. This takes pandas a quarter of the time of a
    list of rows, or of typed columns. Integers stay objects, so no LSN is rounded.
    """
    # The stubs do not support two-dimensional arrays.
    block: Any = np.empty((len(rows), len(names)), np.object_)
    block[:] = rows
    return pd.DataFrame(block, columns=list(names), copy=False)
