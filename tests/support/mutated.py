"""``mutated``: a function with a fault, to show that a test would find it."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def mutated(function: Callable[..., Any], old: str, new: str) -> Iterator[None]:
    """While the body runs, the function has the text ``new`` in place of ``old``, for all who call it."""
    original: Any = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(old) == 1, f"{original.__qualname__} has {old!r} {source.count(old)} times"
    scope = dict(original.__globals__)
    exec(compile(source.replace(old, new), inspect.getfile(original), "exec"), scope)  # noqa: S102  our own code
    fault: Any = scope[original.__name__]
    if isinstance(fault, property):
        fault = fault.fget
    fault = inspect.unwrap(fault)
    kept, original.__code__ = original.__code__, fault.__code__
    try:
        yield
    finally:
        original.__code__ = kept
