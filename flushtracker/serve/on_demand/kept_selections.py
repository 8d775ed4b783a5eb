"""``KeptSelections``: the definitions on demand that clients ask for, bounded in number and in size.

A definition that nobody asks for is forgotten after ``poller.FORGET_S``. While there is no room, others are refused: to
drop one of a client that goes on would cost more than to make a new client wait. So one keeps its place, too, while
what answers it is looked up again.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from flushtracker.serve.poller import FORGET_S
from flushtracker.serve.refusals import UnavailableError

T = TypeVar("T")

MOST_CHARACTERS: Final = 1_000_000
"""The limit for all conditions together: parsed, they take about a hundred times as many bytes."""
_RETRY_AFTER_S: Final = 30
_FORGETS_S: Final = 10.0


@dataclass(slots=True)
class _Kept(Generic[T]):
    """``value`` is ``None`` until it is looked up again."""

    value: T | None
    characters: int
    asked_s: float


class KeptSelections(Generic[T]):
    """At most ``most`` of them. For the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Hashable, _Kept[T]] = {}
        self._forget_s = -FORGET_S
        """When it is to forget next."""
        self.characters = self.refused = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, now_s: float) -> T | None:
        """A kept one, which is asked for now."""
        self.forget(now_s)
        found = self._kept.get(key)
        if found is None:
            return None
        found.asked_s = now_s
        return found.value

    def add(self, key: Hashable, value: T, characters: int, now_s: float) -> None:
        """Keep one whose condition has so many characters; raises ``UnavailableError`` if there is no room."""
        if (place := self._kept.get(key)) is not None:
            place.value = value
            return
        self.forget(now_s)
        if len(self._kept) >= self._most or self.characters + characters > MOST_CHARACTERS:
            self.refused += 1
            raise UnavailableError("too many definitions are asked for on demand; try again", _RETRY_AFTER_S)
        self._kept[key] = _Kept(value, characters, now_s)
        self.characters += characters

    def look_up_again(self) -> None:
        """The registry has changed, and other shapes may contain them now."""
        for each in self._kept.values():
            each.value = None

    def forget(self, now_s: float) -> None:
        """Forget those that nobody has asked for lately; to be called often, also while nobody asks for any."""
        if now_s < self._forget_s:
            return
        self._forget_s = now_s + _FORGETS_S
        for key in [key for key, each in self._kept.items() if each.asked_s + FORGET_S < now_s]:
            self.characters -= self._kept.pop(key).characters
