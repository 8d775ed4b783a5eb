"""``SourceName``: the name that capture gives to the WAL stream of one slot, and which source of a slot is current.

Readers of events accept any text as a source, so a producer other than capture may choose its name freely. Only names
of this form belong to a slot.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

_TEXT: Final = re.compile(r"([^/]+)/([1-9]\d{0,9})/([^/]+)(?:/([1-9]\d{0,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class SourceName:
    """``<system identifier>/<timeline>/<slot>``, and ``/<epoch>`` if that is above 0: a restore begins a new epoch.

    Names of one server and slot are in the order in which capture uses them: a timeline has epochs of its own.

    >>> str(SourceName("7301", 1, "shapes")), str(SourceName("7301", 2, "shapes", epoch=3))
    ('7301/1/shapes', '7301/2/shapes/3')
    """

    system_id: str
    timeline: int
    slot: str
    epoch: int = 0

    @classmethod
    def parse(cls, text: str) -> "SourceName | None":
        """Read a name; the inverse of ``str``. Returns ``None`` if the text is not of that form.

        >>> SourceName.parse("7301/2/shapes/3")
        SourceName(system_id='7301', timeline=2, slot='shapes', epoch=3)
        >>> [SourceName.parse(text) for text in ("shapes", "7301/2/shapes/x", "7301/2/shapes/0", "7301/02/shapes")]
        [None, None, None, None]
        """
        match = _TEXT.fullmatch(text)
        return None if match is None else cls(match[1], int(match[2]), match[3], int(match[4] or 0))

    def __str__(self) -> str:
        return f"{self.server}/{self.slot}" + (f"/{self.epoch}" if self.epoch else "")

    @property
    def server(self) -> str:
        """``<system identifier>/<timeline>`` of the server on which the source began; the timeline may have changed
        since.
        """
        return f"{self.system_id}/{self.timeline}"

    @property
    def base(self) -> "SourceName":
        return replace(self, epoch=0)

    def last_epoch(self, sources: Iterable[str]) -> int | None:
        """The last epoch of this slot and timeline among ``sources``, ``None`` if it has none there.

        >>> SourceName("7301", 1, "shapes").last_epoch(["7301/1/shapes", "7301/1/shapes/2", "7301/1/shapes-eu/9"])
        2
        """
        names = filter(None, map(SourceName.parse, sources))
        return max((name.epoch for name in names if name.base == self.base), default=None)


def current_sources(slot: str, sources: Iterable[str]) -> dict[str, SourceName]:
    """By system identifier, the source among ``sources`` that capture currently reads from ``slot``.

    That is the one with the greatest timeline, and the greatest epoch on it.

    >>> current = current_sources("s", ["7/1/s", "7/2/s", "7/2/s/1", "7/10/s", "7/11/other", "8/1/s", "9/1/s/x"])
    >>> {system_id: str(name) for system_id, name in current.items()}
    {'7': '7/10/s', '8': '8/1/s'}
    """
    names = filter(None, map(SourceName.parse, sources))
    return {name.system_id: name for name in sorted(names) if name.slot == slot}


def successors(sources: Iterable[str]) -> dict[str, str]:
    """The current source of the same slot and server, for each *retired* source.

    The slot's WAL continues under another name, so nothing waits for a retired source's acks.

    >>> successors(["7/1/s", "7/2/s", "7/2/s/1", "7/3/other", "8/1/s", "mine"])
    {'7/1/s': '7/2/s/1', '7/2/s': '7/2/s/1'}
    """
    names = sorted(filter(None, map(SourceName.parse, sources)))
    last = {(name.system_id, name.slot): name for name in names}
    found = ((name, last[name.system_id, name.slot]) for name in names)
    return {str(name): str(successor) for name, successor in found if name != successor}
