"""Chooses the source whose log of a shape is read: there are several after a failover, or after the slot was lost."""

from collections.abc import Set

from flushtracker.errors import ConfigError
from flushtracker.shape_log.position import Position
from flushtracker.wal.source_name import successors


def chosen_source(log: str, shape_id: str, named: str | None, known: Set[str], after: Position | None) -> str:
    """The current source of a shape among the ``known`` ones, which have it; if one is ``named``, that one.

    For a follower at ``after`` it is the position's source, or the one that has replaced it. If a source is named,
    ``known`` has no other.

    Raises:
        ConfigError: there is none, or there are several.
    """
    replaced = successors(known if after is None else {*known, after.source})
    if after is not None:
        named = replaced.get(after.source, after.source)
    current = sorted(known - replaced.keys() if named is None else known & {named})
    if not current:
        of = "" if named is None else f" of source {named}"
        raise ConfigError(f"shape log {log} has no shape {shape_id}{of}; check its id, and whether it is written")
    if len(current) > 1:
        raise ConfigError(f"shape {shape_id} has the sources {', '.join(current)}; name one as source")
    return current[0]
