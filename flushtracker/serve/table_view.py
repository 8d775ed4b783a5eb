"""``TableView``: the result of a poll of the tables.

Storage errors are never part of it. Errors of a shape are: it has ended, or its snapshot is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flushtracker.errors import FlushtrackerError, SnapshotMissingError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.serve.seen_shape import SeenShape


@dataclass(frozen=True, slots=True)
class ShapeProblem:
    """Why a shape cannot be read: an error's type and message, without its traceback, which would grow with each
    request.
    """

    kind: type[FlushtrackerError]
    message: str

    def error(self) -> FlushtrackerError:
        return self.kind(self.message)

    @property
    def is_final(self) -> bool:
        """Whether clients give up at it, so that it must not be outdated: the shape may have been resynced since."""
        return not issubclass(self.kind, SnapshotMissingError)


Outcome = SeenShape | ShapeProblem


@dataclass(frozen=True, slots=True)
class TableView:
    """The result of a poll that began at ``began_s``. ``shape_ids``: all that the registry has."""

    registry: Registry = field(default_factory=Registry)
    shape_ids: frozenset[str] = frozenset()
    version: int = -1
    shapes: Mapping[str, Outcome] = field(default_factory=dict)
    began_s: float = -float("inf")
    table_id: str = ""

    def end_reason(self, shape_id: str, source: str | None) -> str:
        """Why a shape is no longer served, worded for its owner, without the source."""
        sources = sorted(self.registry.sources_of(shape_id)) if source is None else [source]
        entries = (self.registry.shape(each, shape_id) for each in sources)
        reasons = [entry.ended_because for entry in entries if entry is not None and entry.removed_at is not None]
        reason = reasons[-1] if reasons else None
        how = "was removed by its owner" if reason is None else f"has ended because {reason}"
        return f"shape {shape_id} {how}, and changes no more"


def is_update(before: Outcome | None, now: Outcome, after_tx: int, *, or_cut: bool) -> bool:
    """Whether a client that waits for what follows ``after_tx`` must be woken; ``or_cut`` as in ``Poller.changed``."""
    if isinstance(now, ShapeProblem) or not isinstance(before, SeenShape):
        return before != now
    return now.found.has_more(after_tx) or not now.continues(before) or (or_cut and now.cut != before.cut)


def as_before(before: Outcome | None, now: Outcome) -> Outcome:
    """The shape as it was before, unless more than its transactions and its cut has changed."""
    return before if isinstance(before, SeenShape) and isinstance(now, SeenShape) and now.continues(before) else now


def shape_ids_of(registry: Registry) -> frozenset[str]:
    return frozenset(entry.definition.id for entry in registry.entries.values() if isinstance(entry, ShapeEntry))
