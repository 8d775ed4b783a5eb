"""The keys of the records. They decide a record's partition, and in a compacted topic what replaces what.

Compound keys are JSON arrays, so that no two different ones are ever the same text, whatever the names hold.
"""

import json


def fragment_key(source: str) -> str:
    """Of a fragment: all of a source are in one partition, in order."""
    return source


def flush_key(source: str, shape_id: str, event_type: str) -> str:
    """Of a flush notification: the last of each type stays, since ``removed`` must not replace ``flushed``.

    >>> flush_key("7301/1/shapes", "users-eu", "flushed")
    '["7301/1/shapes","users-eu","flushed"]'
    """
    return _compound(source, shape_id, event_type)


def shape_key(source: str, shape_id: str) -> str:
    """Of a shape's registry entry, and of its changes: all of a shape are in one partition, in order.

    >>> shape_key("7301/1/shapes", "users-eu")
    '["7301/1/shapes","users-eu"]'
    """
    return _compound(source, shape_id)


def _compound(*names: str) -> str:
    return json.dumps(names, ensure_ascii=False, separators=(",", ":"))
