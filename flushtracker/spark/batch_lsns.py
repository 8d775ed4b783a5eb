"""How a batch's tasks know up to which LSN the job has taken all changes of a source: by a property of the batch."""

import json
from collections.abc import Mapping
from typing import Final

from pyspark import TaskContext

_PROPERTY: Final = "flushtracker.taken"
"""A property of Spark's jobs: LSNs by source, in JSON."""


def as_property(lsns: Mapping[str, int]) -> tuple[str, str]:
    """The name and value of the property by which a batch's tasks know these LSNs."""
    return _PROPERTY, json.dumps(lsns)


def taken_lsn(source: str) -> int:
    """What this task knows of the source; -1 for nothing, and outside of tasks."""
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(_PROPERTY)
    lsns: dict[str, int] = {} if text is None else json.loads(text)
    return lsns.get(source, -1)
