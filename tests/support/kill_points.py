"""Kill points: a program that dies at a chosen call of one of its own methods."""

from collections.abc import Callable
from typing import Any, TypeAlias

KillPoints: TypeAlias = dict[str, tuple[type, str, bool]]
"""Point → class, method, and whether to die before the call rather than after it."""


def arm(
    points: KillPoints, point: str, passes: int, die: Callable[[], None], counts: Callable[[], bool] = lambda: True
) -> None:
    """Make the program call ``die`` at ``point``, after passing it ``passes`` times while it ``counts``."""
    owner, name, dies_before = points[point]
    setattr(owner, name, _counted(getattr(owner, name), passes, die, counts, before=dies_before))


def _counted(
    function: Callable[..., Any], passes: int, die: Callable[[], None], counts: Callable[[], bool], *, before: bool
) -> Callable[..., Any]:
    """Wrap ``function`` to die before or after its call number ``passes``, counted from 0."""
    calls = 0

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += counts()
        if before and calls > passes:
            die()
        result = function(*args, **kwargs)
        if calls > passes:
            die()
        return result

    return wrapper
