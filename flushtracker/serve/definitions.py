"""``Definitions``: finds the shape that a client requests by definition instead of by id.

Definitions are compared by meaning, not by text: tables and columns by their catalog names, conditions by their
canonical forms (:mod:`flushtracker.shapes.where.canonical`).
"""

import re
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from flushtracker.errors import ShapeError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.serve.condition_text import PUBLIC, condition_of, parsed_condition
from flushtracker.serve.on_demand.containment import AskedDefinition, selection_of
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.serve.refusals import BadRequestError, RefusalError
from flushtracker.serve.shape_request import RequestedDefinition
from flushtracker.serve.sql_names import NAME, catalog_name
from flushtracker.shapes.bound_relation import relation_of
from flushtracker.shapes.shape_schema import shape_key
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.shapes.where import Where
from flushtracker.shapes.where.canonical import Form
from flushtracker.wal.changes import Relation, TableName
from flushtracker.wal.source_name import successors

_TABLE: Final = re.compile(rf"(?:(?:{NAME})\.)?(?:{NAME})")
_COLUMN: Final = re.compile(rf"\s*(?:{NAME})\s*(,|$)")

_Form = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The shape whose log answers a definition; with a ``selection``, the definition is a part of the shape.

    ``entry`` is the shape's own, if it is defined as was asked; ``None`` if it was asked for by its id.
    """

    shape_id: str
    selection: Selection | None = None
    entry: ShapeEntry | None = None


_Made = tuple[ShapeEntry, TableBinding | None, _Form | None]


class Definitions:
    """The readable shapes of one registry. For one thread.

    An entry's form is computed when its table is first requested; forms of unchanged entries come from ``before``.
    """

    def __init__(self, registry: Registry, source: str | None, before: "Definitions | None" = None) -> None:
        self._by_table: dict[TableName, list[ShapeEntry]] = {}
        self._registry = registry
        for entry in registry.entries.values():
            if isinstance(entry, ShapeEntry) and not entry.is_condensed and _is_of(entry, registry, source):
                self._by_table.setdefault(entry.definition.table, []).append(entry)
        self._groups: dict[TableName, list[_Group]] = {}
        ids = {_id(entry) for entries in self._by_table.values() for entry in entries}
        known: dict[tuple[str, str], _Made] = {} if before is None else before._made
        self._made: dict[tuple[str, str], _Made] = {key: made for key, made in known.items() if key in ids}

    def target(self, asked: RequestedDefinition, on_demand: Container[TableName]) -> Target | None:
        """The shape with this definition; ``None`` if there is none.

        A definition of an ``on_demand`` table that no live shape has is a selection.

        Raises:
            BadRequestError: the definition cannot be read, or shapes of several sources have it.
            RefusalError: as ``selection_of``.
        """
        definition = read_definition(asked)
        entry = self._entry(definition)
        own = None if entry is None else Target(entry.definition.id, entry=entry)
        if (entry is not None and entry.removed_at is None) or definition.table not in on_demand:
            return own
        groups = self._groups_of(definition.table)
        try:
            selection = selection_of(definition, [(g.binding, g.conditions) for g in groups if g.binding is not None])
        except RefusalError as error:
            if own is None or error.status != 404:
                raise
            # Its own shape has ended, which clients are told of.
            return own
        return Target(selection.parent.entry.definition.id, selection)

    def _entry(self, asked: AskedDefinition) -> ShapeEntry | None:
        found = list[ShapeEntry]()
        for group in self._groups_of(asked.table):
            # The columns always include the key, whether or not it is named.
            chosen = None if asked.columns is None else asked.columns | set(group.key)
            found += group.entries.get(_form(asked.where, group.relation, chosen, asked.replica), ())
        live = [entry for entry in found if entry.removed_at is None]
        if len({entry.source for entry in live}) > 1:
            raise BadRequestError("the definition is ambiguous: shapes of several sources are defined so")
        return min(live or found, key=lambda entry: entry.definition.id, default=None)

    def _groups_of(self, table: TableName) -> "list[_Group]":
        if table not in self._groups:
            groups = list[_Group]()
            for entry in self._by_table.get(table, ()):
                binding = self._registry.table_of(entry)
                key = _key(entry, binding)
                group = next((group for group in groups if (group.binding, group.key) == (binding, key)), None)
                if group is None:
                    group = _Group(binding, key, _relation(binding), {})
                    groups.append(group)
                if (form := self._form_of(entry, group)) is not None:
                    group.entries.setdefault(form, []).append(entry)
            self._groups[table] = groups
        return self._groups[table]

    def _form_of(self, entry: ShapeEntry, group: "_Group") -> _Form | None:
        """The form of an entry; ``None`` for a condition that an earlier release accepted and this one refuses."""
        made = self._made.get(_id(entry))
        if made is None or made[:2] != (entry, group.binding):
            definition, form = entry.definition, None
            columns = None if definition.columns is None else frozenset({*definition.columns, *group.key})
            with suppress(BadRequestError):
                form = _form(parsed_condition(definition.where), group.relation, columns, definition.replica)
            made = self._made[_id(entry)] = entry, group.binding, form
        return made[2]


@dataclass(frozen=True, slots=True)
class _Group:
    """Shapes of a table with the same columns and key, by form."""

    binding: TableBinding | None
    key: tuple[str, ...]
    relation: Relation | None
    entries: dict[_Form, list[ShapeEntry]]

    @property
    def conditions(self) -> list[tuple[ShapeEntry, Form | None]]:
        return [(entry, form[0]) for form, entries in self.entries.items() for entry in entries]


def read_definition(asked: RequestedDefinition) -> AskedDefinition:
    """The parts of a requested definition; raises ``BadRequestError``."""
    where = parsed_condition(condition_of(asked.where, asked.params), PUBLIC)
    return AskedDefinition(_table(asked.table), where, _columns(asked.columns), asked.replica)


def _is_of(entry: ShapeEntry, registry: Registry, source: str | None) -> bool:
    """Whether a shape is of the source; without one, as for a shape that is asked for by its id, of the current one."""
    if source is not None:
        return entry.source == source
    known = registry.sources_of(entry.definition.id)
    return len(known) == 1 or entry.source not in successors(known)


def _id(entry: ShapeEntry) -> tuple[str, str]:
    return entry.source, entry.definition.id


def _key(entry: ShapeEntry, table: TableBinding | None) -> tuple[str, ...]:
    return (entry.definition.primary_key or ()) if table is None else shape_key(entry.definition, table)


def _form(where: Where | None, relation: Relation | None, columns: frozenset[str] | None, replica: str) -> _Form:
    try:
        condition = None if where is None else where.canonical(relation)
    except ShapeError as error:
        raise BadRequestError(str(error)) from error
    return condition, columns, replica


def _relation(table: TableBinding | None) -> Relation | None:
    return None if table is None else relation_of(table)


def _table(text: str) -> TableName:
    """A table name in SQL; unqualified it is in ``public``, as for Electric.

    >>> _table("Items"), _table('"My.Schema"."T"')
    (('public', 'items'), ('My.Schema', 'T'))
    """
    found = _TABLE.fullmatch(text)
    if found is None:
        raise BadRequestError('table is not a name such as items, public.items or "Public"."Items"')
    schema = catalog_name(found[1], found[2]) if found[1] or found[2] else PUBLIC
    return schema, catalog_name(found[3], found[4])


def _columns(text: str | None) -> frozenset[str] | None:
    """Comma-separated SQL column names.

    >>> sorted(_columns('id, Name,"Na,me"'))
    ['Na,me', 'id', 'name']
    """
    if text is None:
        return None
    names, end = set[str](), 0
    while end < len(text) or not names:
        found = _COLUMN.match(text, end)
        if found is None or (found[3] and found.end() == len(text)):
            raise BadRequestError('columns is not a list of names such as id,"Name"')
        names.add(catalog_name(found[1], found[2]))
        end = found.end()
    return frozenset(names)
