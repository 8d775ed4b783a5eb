"""Shrinks a history that breaks the rule: replays it without some of its steps, as long as it still breaks."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from tests.support.schema_history import History, Step
from tests.support.schema_play import RuleBrokenError

Replay: TypeAlias = Callable[[History], RuleBrokenError | None]
"""Plays a history; returns how the rule is broken, ``None`` if it is not."""


def shrink(history: History, broken: RuleBrokenError, replay: Replay, replays: int) -> tuple[History, str]:
    """A short history that still breaks the rule in the same way, and how it does; after at most so many replays.

    What is broken depends on when capture looks at the catalog, so a shorter history that is not broken once may be
    the next time; it is not tried again.
    """
    best, why = replace(history, steps=history.steps[: broken.step + 1]), str(broken)
    size = max(1, len(best.steps) // 2)
    while size:
        was_shortened = False
        for shorter in _shorter(best, size):
            if not replays:
                return best, why
            replays -= 1
            found = replay(shorter)
            if found is not None and found.kind == broken.kind:
                best, why = replace(shorter, steps=shorter.steps[: found.step + 1]), str(found)
                was_shortened = True
                break
        if not was_shortened:
            size //= 2
    return best, why


def _shorter(history: History, size: int) -> Iterator[History]:
    """The history without each ``size`` steps in turn, the last first; without single changes of a step at the end."""
    steps = history.steps
    for end in range(len(steps) - 1, 0, -size):
        yield replace(history, steps=(*steps[: max(0, end - size)], *steps[end:]))
    if size > 1:
        return
    for number, step in enumerate(steps):
        for shorter in _shorter_step(step):
            yield replace(history, steps=(*steps[:number], shorter, *steps[number + 1 :]))


def _shorter_step(step: Step) -> Iterator[Step]:
    if len(step.changes) > 1:
        for number in range(len(step.changes)):
            yield replace(step, changes=(*step.changes[:number], *step.changes[number + 1 :]))
