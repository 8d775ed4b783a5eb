"""The name of a source: which server's WAL, on which timeline, read by which slot, and since which restore."""

from collections.abc import Iterable


def base_source(system_id: str, timeline: int, slot: str) -> str:
    """A source in its first epoch.

    >>> base_source("7301", 1, "shapes")
    '7301/1/shapes'
    """
    return f"{system_id}/{timeline}/{slot}"


def in_epoch(base: str, epoch: int) -> str:
    """The same server, timeline and slot, after so many times that its owner has begun anew.

    >>> in_epoch("7301/1/shapes", 0), in_epoch("7301/1/shapes", 2)
    ('7301/1/shapes', '7301/1/shapes/2')
    """
    return f"{base}/{epoch}" if epoch else base


def last_epoch(base: str, sources: Iterable[str]) -> int | None:
    """The last epoch that one of ``sources`` is in, ``None`` where ``base`` has none.

    >>> last_epoch("7301/1/shapes", ["7301/1/shapes", "7301/1/shapes/2", "7301/1/shapes-eu/9"])
    2
    """
    epochs = [0 for source in sources if source == base]
    for source in sources:
        head, _, tail = source.rpartition("/")
        if head == base and tail.isdecimal():
            epochs.append(int(tail))
    return max(epochs, default=None)
