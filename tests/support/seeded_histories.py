"""Plays random histories from seeds, and names the seed of one that fails."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar


class History(Protocol):
    def play(self) -> None:
        """Play it to its end; raises ``AssertionError``."""


_T = TypeVar("_T", bound=History)


def played(history: Callable[[int], _T], count: int) -> Iterator[_T]:
    """The histories of the first ``count`` seeds, each once it was played."""
    for seed in range(count):
        found = history(seed)
        try:
            found.play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        yield found
