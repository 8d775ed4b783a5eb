"""Passes LSNs by source from the driver to a batch's tasks, in a property of the batch's Spark job."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from pyspark import TaskContext

_PROPERTY: Final = "flushtracker.lsns"
"""A property of Spark jobs: LSNs by source, as JSON."""


def as_property(lsns: Mapping[str, int]) -> tuple[str, str]:
    """The name and value of the property with these LSNs."""
    return _PROPERTY, json.dumps(lsns)


def batch_lsn(source: str) -> int:
    """This source's LSN in the current task; -1 if unknown, and outside of tasks."""
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(_PROPERTY)
    return -1 if text is None else _parsed(text).get(source, -1)


@lru_cache(maxsize=1)
def _parsed(text: str) -> dict[str, int]:
    lsns: dict[str, int] = json.loads(text)
    return lsns
