"""``Selection``: what a definition shows of the rows of its parent, a shape that contains it."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flushtracker.events.registry_events import ShapeEntry
from flushtracker.serve.on_demand.required_texts import Required, required_texts
from flushtracker.serve.rendering import Rendering
from flushtracker.serve.schema import schema_json
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.joined_rows import shown_text
from flushtracker.shapes.bound_relation import relation_of
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.shapes.where.canonical import Form
from flushtracker.wal.changes import Row


@dataclass(frozen=True, slots=True)
class Parent:
    """A shape, and its table, as the registry had them when it was found to contain a definition."""

    entry: ShapeEntry
    table: TableBinding

    def is_still(self, found: FoundShape) -> bool:
        """Whether a shape is this one, with the same definition, columns and types: another may contain less."""
        entry, table = found.entry, found.table
        if entry is None or table is None:
            return False
        is_shape = (entry.source, entry.definition) == (self.entry.source, self.entry.definition)
        mine = self.table
        return is_shape and (table.columns, table.types, table.key) == (mine.columns, mine.types, mine.key)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """``matches`` is the condition, bound to the parent's table; ``names`` are the shown columns, ``None`` for all.

    ``digest`` is that of the definition's meaning, so two spellings of it are the same for clients. ``has_old``:
    updates and deletes have the old values, too. ``required``: the texts that rows that match have.
    """

    parent: Parent
    digest: str
    matches: Callable[[Row], bool | None] | None
    names: tuple[str, ...] | None
    schema: str
    rendering: Rendering
    has_old: bool
    required: Required = ()

    @classmethod
    def of(
        cls,
        parent: Parent,
        form: Form | None,
        matches: Callable[[Row], bool | None] | None,
        names: Iterable[str] | None,
        replica: str,
    ) -> "Selection":
        """The selection of these columns, which are in the table, from the rows that match the condition ``form``."""
        table, chosen = parent.table, None if names is None else frozenset(names)
        columns = [each for each in table.columns if chosen is None or each.name in chosen]
        return cls(
            parent,
            digest=_digest(form, chosen, replica),
            matches=matches,
            names=None if chosen is None else tuple(each.name for each in columns),
            schema=schema_json(columns, table),
            rendering=Rendering.of(table.table, columns, table),
            has_old=replica == "full",
            required=required_texts(form, relation_of(table)),
        )

    def shown(self, text: str, row: Row) -> str | None:
        """A row of the parent, also given as the ``text`` of JSON, as it is shown; ``None`` if it is not.

        Raises ``DecodeError`` if the condition has no outcome for it.
        """
        if self.matches is not None and self.matches(row) is not True:
            return None
        return text if self.names is None else shown_text(row, self.names)


def _digest(form: Form | None, columns: frozenset[str] | None, replica: str) -> str:
    names = None if columns is None else sorted(columns)
    return hashlib.sha256(repr((form, names, replica)).encode()).hexdigest()
