"""The name of a source: system identifier, timeline, slot and, after a restore, an epoch number."""

from collections.abc import Iterable


def base_source(system_id: str, timeline: int, slot: str) -> str:
    """Return the name of a source in its first epoch.

    >>> base_source("7301", 1, "shapes")
    '7301/1/shapes'
    """
    return f"{system_id}/{timeline}/{slot}"


def server_and_slot(source: str) -> tuple[str, str]:
    """The server that a source is of, ``<system identifier>/<timeline>``, and its slot.

    >>> server_and_slot("7301/1/shapes"), server_and_slot("7301/1/shapes/2")
    (('7301/1', 'shapes'), ('7301/1', 'shapes'))

    Raises:
        ValueError: this is not the name of a source that capture reads.
    """
    system_id, timeline, slot, *_ = source.split("/")
    return f"{system_id}/{timeline}", slot


def in_epoch(base: str, epoch: int) -> str:
    """Return the name of the source ``base`` in the given epoch. The first epoch, 0, leaves the name unchanged.

    >>> in_epoch("7301/1/shapes", 0), in_epoch("7301/1/shapes", 2)
    ('7301/1/shapes', '7301/1/shapes/2')
    """
    return f"{base}/{epoch}" if epoch else base


def last_epoch(base: str, sources: Iterable[str]) -> int | None:
    """Return the last epoch of ``base`` among ``sources``, ``None`` if none of them belongs to it.

    >>> last_epoch("7301/1/shapes", ["7301/1/shapes", "7301/1/shapes/2", "7301/1/shapes-eu/9"])
    2
    """
    epochs = [0 for source in sources if source == base]
    for source in sources:
        head, _, tail = source.rpartition("/")
        if head == base and tail.isdecimal():
            epochs.append(int(tail))
    return max(epochs, default=None)
