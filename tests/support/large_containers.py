"""The large containers of an object and all below it, so that a test finds what keeps things that are gone."""

import gc
from collections import deque
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any


def containers(root: object, many: int) -> Iterator[tuple[str, int]]:
    """Each container below ``root`` with more than ``many`` entries, by the class and the attribute that it is in."""
    seen, waiting = {id(root)}, deque[tuple[str, Any]]([(type(root).__name__, root)])
    while waiting:
        name, found = waiting.popleft()
        if isinstance(found, (dict, set, frozenset, list, tuple, deque)) and len(found) > many:
            yield name, len(found)
            continue
        own = getattr(found, "__dict__", None)
        slots = {slot for base in type(found).__mro__ for slot in getattr(base, "__slots__", ())}
        attributes = {**(own if isinstance(own, dict) else {}), **{each: getattr(found, each, None) for each in slots}}
        below = [(f"{type(found).__name__}.{key}", value) for key, value in attributes.items()]
        if not below:
            below = [(name, each) for each in gc.get_referents(found)]
        for key, value in below:
            if id(value) not in seen and not isinstance(value, (type, ModuleType, FunctionType, str, bytes, int)):
                seen.add(id(value))
                waiting.append((key, value))
