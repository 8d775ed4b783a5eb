"""``SeenShape``: a shape as found by the last poll of the tables, with its facts for answers."""

import hashlib
import json
from dataclasses import dataclass, replace

from flushtracker.errors import PositionError
from flushtracker.serve.handle import Handle
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.serve.rendering import Rendering
from flushtracker.serve.schema import schema_json
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.table.cut_finder import known_from
from flushtracker.shape_log.table.found_shape import FoundShape


@dataclass(frozen=True, slots=True)
class ShapeFacts:
    """The facts common to all rows of a shape; ``digest`` changes if clients must start over.

    It does for another log, source or incarnation, and for other columns or types, which a client gets only once.
    ``log`` changes only for another log or source, where an LSN means another transaction. ``schema_digest`` is the
    digest that capture's events have while it knows the table as the registry does; ``None`` if there is none.
    ``parent`` is the digest of the parent's facts; ``None`` unless these are of a selection.
    """

    digest: str
    log: str
    schema: str
    rendering: Rendering
    table_id: str
    schema_digest: str | None = None
    parent: str | None = None

    @classmethod
    def of(cls, found: FoundShape, table_id: str) -> "ShapeFacts":
        entry, table = found.entry, found.table
        incarnation = 1 if entry is None else entry.definition.incarnation
        schema = schema_json(found.columns.values(), table)
        name = None if entry is None else entry.definition.table
        rendering = Rendering.of(name, found.columns.values(), table)
        names = [table_id, found.source, found.shape_id, incarnation, schema]
        log = _digest([table_id, found.source], 8)
        return cls(_digest(names, 16), log, schema, rendering, table_id, found.schema)

    def of_selection(self, selection: Selection) -> "ShapeFacts":
        digest = _digest([self.digest, selection.digest], 16)
        return ShapeFacts(digest, self.log, selection.schema, selection.rendering, self.table_id, parent=self.digest)

    def is_log_of(self, handle: Handle) -> bool:
        """Whether a handle is known to be of the same log and source."""
        return self.log == handle.log if handle.log else self.digest == handle.digest


def _digest(names: list[object], length: int) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:length]


@dataclass(frozen=True, slots=True)
class SeenShape:
    """A shape in one version of the tables, which are complete for it up to the ``cut`` of its source, if there
    is one.
    """

    found: FoundShape
    facts: ShapeFacts
    cut: int | None = None
    selection: Selection | None = None
    """What is shown of the rows; ``None`` for all of them as they are."""

    def selected(self, selection: Selection | None) -> "SeenShape":
        """What a selection shows of this shape; raises ``PositionError`` if that is not its parent any more."""
        if selection is None:
            return self
        if not selection.parent.is_still(self.found):
            raise PositionError(f"{self.found.name} is defined otherwise than the parent of the definition on demand")
        return replace(self, facts=self.facts.of_selection(selection), selection=selection)

    @property
    def shape_id(self) -> str:
        return self.found.shape_id

    @property
    def tx(self) -> int:
        """The last readable transaction; 0 before the first."""
        return 0 if self.found.bound is None else self.found.bound.tx_offset

    @property
    def handle(self) -> Handle:
        """The handle of a client that starts now."""
        return Handle(self.facts.digest, self.found.attempt, log=self.facts.log)

    def is_behind(self, tx: int) -> bool:
        """Whether a client that has everything up to ``tx`` is ahead of the log and the cut."""
        return tx > max(self.tx, -1 if self.cut is None else self.cut)

    def proves(self, tx: int) -> bool:
        """Whether this alone proves that the log has all that a client at ``tx`` was shown; a read can prove it, too.

        A log that was restored from an older copy may have continued without it. The log is complete up to the cut.
        """
        snapshot = self.found.snapshot
        known = {0, self.tx, self.found.begins_at, -1 if snapshot is None else snapshot.starts_after}
        return tx in known or (self.cut is not None and tx <= self.cut)

    def lsn(self, tx: int) -> int | None:
        """The LSN up to which a client with the transactions up to ``tx``, the last one, has all of the shape.

        That is the cut, or the transaction if later. -1 while the rows of a snapshot are ahead of the cut, because
        their LSN is not known yet. ``None`` without a cut.
        """
        if self.cut is None:
            return None
        reached = max(self.cut, tx)
        return reached if reached >= known_from(self.found) else -1

    def position(self, handle: Handle, tx: int) -> Position:
        """The position of a client with this handle, which must be of this shape."""
        return Position(self.found.source, tx, handle.attempt)

    def require_followed(self, handle: Handle, tx: int) -> None:
        """Raise ``PositionError`` if the log cannot be continued directly for a client with this handle.

        A client that is ahead of the log may wait for it. Whether a later snapshot contains later transactions can only
        be determined by a read.
        """
        after, found = self.position(handle, tx), self.found
        if self.is_older_than(handle):
            found.require_reached(after)
        if found.snapshot is None or after.attempt == found.attempt:
            return
        if found.may_be_before(after):
            raise found.lost(after)
        found.require_followed(after)

    def is_older_than(self, handle: Handle) -> bool:
        """Whether the log lacks the snapshot that a client started from, because it is an older copy."""
        return handle.digest == self.facts.digest and handle.attempt > self.found.attempt

    def continues(self, other: "SeenShape") -> bool:
        """Whether nothing relevant to clients has changed, unless there are more transactions."""
        return self.found.snapshot == other.found.snapshot and self.facts == other.facts
