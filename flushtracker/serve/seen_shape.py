"""``SeenShape``: a shape as the last look at the tables found it, with what answers say about it."""

import hashlib
import json
from dataclasses import dataclass

from flushtracker.serve.handle import Handle
from flushtracker.serve.rendering import Rendering
from flushtracker.serve.schema import schema_json
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.table.cut_finder import known_from
from flushtracker.shape_log.table.found_shape import FoundShape


@dataclass(frozen=True, slots=True)
class ShapeFacts:
    """What of a shape is the same for all of its rows: ``digest`` differs if a client's copy must begin again.

    That is for another log, source or incarnation, and for other columns or types, which a client learns only once.
    """

    digest: str
    schema: str
    rendering: Rendering
    table_id: str

    @classmethod
    def of(cls, found: FoundShape, table_id: str) -> "ShapeFacts":
        entry, table = found.entry, found.table
        incarnation = 1 if entry is None else entry.definition.incarnation
        schema = schema_json(found.columns.values(), table)
        name = None if entry is None else entry.definition.table
        rendering = Rendering.of(name, found.columns.values(), table)
        names = [table_id, found.source, found.shape_id, incarnation, schema]
        digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]
        return cls(digest, schema, rendering, table_id)


@dataclass(frozen=True, slots=True)
class SeenShape:
    """A shape in one version of the tables, which have all of it up to the ``cut`` of its source, if there is one."""

    found: FoundShape
    facts: ShapeFacts
    cut: int | None = None

    @property
    def shape_id(self) -> str:
        return self.found.shape_id

    @property
    def tx(self) -> int:
        """The last transaction that can be read; 0 before the first."""
        return 0 if self.found.bound is None else self.found.bound.tx_offset

    @property
    def handle(self) -> Handle:
        """That of a client that begins now."""
        return Handle(self.facts.digest, self.found.attempt)

    def lsn(self, tx: int) -> int | None:
        """Up to which LSN a client has all of the shape that has its transactions up to ``tx``, the last one.

        That is the cut, or the transaction if it is later. -1 as long as the rows of a snapshot are ahead of it: there
        is no LSN yet as of which these are. ``None`` without a cut.
        """
        if self.cut is None:
            return None
        reached = max(self.cut, tx)
        return reached if reached >= known_from(self.found) else -1

    def position(self, handle: Handle, tx: int) -> Position:
        """That of a client with this handle, which is of this shape."""
        return Position(self.found.source, tx, handle.attempt)

    def require_followed(self, handle: Handle, tx: int) -> None:
        """Raise ``PositionError`` if the log cannot be continued as it is for a client with this handle.

        Whether a snapshot that was taken since has later transactions, only a read can tell.
        """
        after, found = self.position(handle, tx), self.found
        # The cut may be past the last transaction, and then nothing is missing between the two.
        if self.cut is None or tx > self.cut or after.attempt > found.attempt:
            found.require_reached(after)
        if found.snapshot is None or after.attempt == found.attempt:
            return
        if found.may_be_before(after):
            raise found.lost(after)
        found.require_followed(after)

    def is_as(self, other: "SeenShape") -> bool:
        """Whether nothing that a client could be told has changed."""
        mine, theirs = self.found, other.found
        is_same = (mine.last_commit, mine.snapshot) == (theirs.last_commit, theirs.snapshot)
        return is_same and self.facts == other.facts
