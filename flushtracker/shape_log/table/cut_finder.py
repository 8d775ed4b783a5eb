"""``find_cut``: how to read several shapes as of one moment, the source's last cut.

The order of reads matters. The cut is that of the log's open version, so everything up to the cut is in that version.
The registry table is read after the log. It has every removal up to the cut, because it had these before the cut was
written, and every removal whose rows were deleted from the log.
"""

from collections.abc import Sequence
from dataclasses import replace

from flushtracker.errors import ConfigError, CutMissingError
from flushtracker.shape_log.table.cut_log import last_cut, registry_row
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.shape_finder import ShapeFinder
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn


def find_cut(
    finder: ShapeFinder, shape_ids: Sequence[str], source: str | None, *, typed: bool
) -> tuple[int, list[FoundShape]]:
    """The cut, and each shape with its bound there; raises as ``read_shapes``."""
    finder.refresh()
    registry = finder.registry_table
    if registry is None:
        raise ConfigError(f"shape log {finder.uri} has no registry table beside it, which says what is live; name it")
    if not registry.has_row_of(registry_row(finder.app_version, registry.table_id)):
        raise CutMissingError(f"registry table {registry.uri} is older than shape log {finder.uri}; read again later")
    shapes = [finder.seen(shape_id, source) for shape_id in shape_ids]
    found = sorted({shape.source for shape in shapes})
    if len(found) != 1:
        raise ConfigError(f"the shapes are of the sources {', '.join(found)}, which have no LSN in common")
    cut = seen_cut(finder, found[0])
    if cut is None:
        raise CutMissingError(
            f"shape log {finder.uri} has no cut of source {found[0]} by registry table {registry.uri} yet; set acks of "
            "flushtracker write, and wait for the next ack"
        )
    for shape in shapes:
        shape.require_started()
        shape.require_snapshot()
        require_complete(shape, cut)
        if typed:
            shape.require_types()
    bound = LogOffset.last_of(cut)
    return cut, [replace(shape, last_commit=finder.last_commit_at(shape, bound)) for shape in shapes]


def seen_cut(finder: ShapeFinder, source: str) -> int | None:
    """A source's cut as of the finder's last refresh, ``None`` without one; raises ``SinkError``."""
    registry = finder.registry_table
    if registry is None or not registry.has_row_of(registry_row(finder.app_version, registry.table_id)):
        return None
    return last_cut(finder.app_version, registry.table_id, source)


def require_complete(shape: FoundShape, cut: int) -> None:
    """Raise ``CutMissingError`` if the rows of a live shape are not known at a cut of its source.

    They are known unless the shape begins later: the cut covers everything routed to the shape.
    """
    if shape.entry is None:
        raise ConfigError(f"{shape.name} is not in the registry table, so nobody knows whether it is live")
    begins = known_from(shape)
    if begins > cut:
        raise CutMissingError(
            f"the log is complete up to {format_lsn(cut)}, but what it has of {shape.name} begins at "
            f"{format_lsn(begins)}; read again in a moment"
        )


def known_from(shape: FoundShape) -> int:
    """The first LSN at which the rows of a shape are known, provided that the log is complete up to there.

    A snapshot has the rows after the transactions that commit below ``lsn``, the end of the WAL at that time, where the
    next one may commit. A fold includes the transaction that commits at its ``lsn``.
    """
    starts_after = 0 if shape.entry is None else shape.entry.starts_after.tx_offset
    if shape.snapshot is None:
        return starts_after
    return max(starts_after, shape.snapshot.lsn if shape.snapshot.is_fold else shape.snapshot.lsn - 1)
