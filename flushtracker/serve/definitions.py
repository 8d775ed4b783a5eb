"""``Definitions``: finds the shape that a client requests by definition instead of by id.

Definitions are compared by meaning, not by text: tables and columns by their catalog names, conditions by their
canonical forms (:mod:`flushtracker.shapes.where.canonical`).
"""

import re
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from flushtracker.errors import ShapeError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.serve.on_demand.containment import AskedDefinition, selection_of
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.serve.refusals import BadRequestError, RefusalError
from flushtracker.serve.shape_request import RequestedDefinition
from flushtracker.shapes.bound_relation import relation_of
from flushtracker.shapes.shape_schema import shape_key
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.shapes.where import Where, parse_where
from flushtracker.wal.changes import Relation, TableName

_NAME: Final = r'"((?:[^"]|"")+)"|([A-Za-z_\u0080-\U0010ffff][\w$]*)'
_TABLE: Final = re.compile(rf"(?:(?:{_NAME})\.)?(?:{_NAME})")
_COLUMN: Final = re.compile(rf"\s*(?:{_NAME})\s*(,|$)")
_TOKENS: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$([0-9]{1,3})|[^'"$]+""")
_AMBIGUOUS: Final = ("--", "/*", "\\")
_WORD: Final = re.compile(r"[\w$]")
_TOUCHING: Final = "where has a placeholder beside a word, a quote or another placeholder"
_MOST_CONDITION: Final = 8_000
_SCHEMA: Final = "public"
"""The schema of unqualified tables, as for Electric."""

_Form = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The shape whose log answers a definition; with a ``selection``, that is part of what it has."""

    shape_id: str
    selection: Selection | None = None


_Made = tuple[ShapeEntry, TableBinding | None, _Form | None]


class Definitions:
    """The readable shapes of one registry. For one thread.

    An entry's form is computed when its table is first requested; forms of unchanged entries come from ``before``.
    """

    def __init__(self, registry: Registry, source: str | None, before: "Definitions | None" = None) -> None:
        self._by_table: dict[TableName, list[ShapeEntry]] = {}
        self._registry = registry
        for entry in registry.entries.values():
            if isinstance(entry, ShapeEntry) and not entry.is_condensed and source in {None, entry.source}:
                self._by_table.setdefault(entry.definition.table, []).append(entry)
        self._groups: dict[TableName, list[_Group]] = {}
        ids = {_id(entry) for entries in self._by_table.values() for entry in entries}
        known: dict[tuple[str, str], _Made] = {} if before is None else before._made
        self._made: dict[tuple[str, str], _Made] = {key: made for key, made in known.items() if key in ids}

    def shape_id(self, asked: RequestedDefinition) -> str | None:
        """The id of the shape with this definition; ``None`` if there is none.

        Raises:
            BadRequestError: the definition cannot be read, or shapes of several sources have it.
        """
        return self._shape_id(read_definition(asked))

    def target(self, asked: RequestedDefinition, on_demand: Container[TableName]) -> Target | None:
        """As :meth:`shape_id`; a definition of an ``on_demand`` table that no live shape has is a selection.

        Raises also as ``selection_of``.
        """
        definition = read_definition(asked)
        shape_id = self._shape_id(definition)
        entries = self._by_table.get(definition.table, ())
        is_live = any(entry.definition.id == shape_id and entry.removed_at is None for entry in entries)
        if is_live or definition.table not in on_demand:
            return None if shape_id is None else Target(shape_id)
        known = [(entry, table) for entry in entries if (table := self._registry.table_of(entry)) is not None]
        try:
            selection = selection_of(definition, known)
        except RefusalError as error:
            if shape_id is None or error.status != 404:
                raise
            # Its own shape has ended, which clients are told of.
            return Target(shape_id)
        return Target(selection.parent.entry.definition.id, selection)

    def _shape_id(self, asked: AskedDefinition) -> str | None:
        found = list[ShapeEntry]()
        for group in self._groups_of(asked.table):
            # The columns always include the key, whether or not it is named.
            chosen = None if asked.columns is None else asked.columns | set(group.key)
            found += group.entries.get(_form(asked.where, group.relation, chosen, asked.replica), ())
        live = [entry for entry in found if entry.removed_at is None]
        if len({entry.source for entry in live}) > 1:
            raise BadRequestError("the definition is ambiguous: shapes of several sources are defined so")
        return min((entry.definition.id for entry in live or found), default=None)

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
                form = _form(_parsed(definition.where), group.relation, columns, definition.replica)
            made = self._made[_id(entry)] = entry, group.binding, form
        return made[2]


@dataclass(frozen=True, slots=True)
class _Group:
    """Shapes of a table with the same columns and key, by form."""

    binding: TableBinding | None
    key: tuple[str, ...]
    relation: Relation | None
    entries: dict[_Form, list[ShapeEntry]]


def read_definition(asked: RequestedDefinition) -> AskedDefinition:
    """The parts of a requested definition; raises ``BadRequestError``."""
    where = _parsed(_where(asked), _SCHEMA)
    return AskedDefinition(_table(asked.table), where, _columns(asked.columns), asked.replica)


def _id(entry: ShapeEntry) -> tuple[str, str]:
    return entry.source, entry.definition.id


def _key(entry: ShapeEntry, table: TableBinding | None) -> tuple[str, ...]:
    return (entry.definition.primary_key or ()) if table is None else shape_key(entry.definition, table)


def _parsed(where: str | None, schema: str | None = None) -> Where | None:
    try:
        return None if where is None else parse_where(where, schema)
    except ShapeError as error:
        raise BadRequestError(str(error)) from error


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
    schema = _name(found[1], found[2]) if found[1] or found[2] else _SCHEMA
    return schema, _name(found[3], found[4])


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
        names.add(_name(found[1], found[2]))
        end = found.end()
    return frozenset(names)


def _name(quoted: str | None, plain: str | None) -> str:
    """PostgreSQL folds only ASCII letters of an unquoted name."""
    if quoted is not None:
        return quoted.replace('""', '"')
    return re.sub("[A-Z]", lambda found: found[0].lower(), plain or "")


def _where(asked: RequestedDefinition) -> str | None:
    """The condition, with the placeholders' values as literals."""
    where, values = asked.where, dict(asked.params)
    if where is None:
        if values:
            raise BadRequestError("params has values, but there is no where")
        return None
    if not values and "$" not in where:
        return where
    if any(mark in where for mark in _AMBIGUOUS):
        raise BadRequestError("where has a comment or a backslash beside placeholders, which could be read in two ways")
    filled, used = _filled(where, values)
    if used != values.keys():
        raise BadRequestError("params has a value that where does not name")
    return filled


def _filled(where: str, values: Mapping[int, str]) -> tuple[str, set[int]]:
    """The condition with literals for its placeholders, and the placeholders' numbers."""
    parts, used, end, size = list[str](), set[int](), 0, 0
    before = ""
    while end < len(where):
        found = _TOKENS.match(where, end)
        if found is None:
            raise BadRequestError("where has a quote without its end, or a $ without a number")
        kind = "placeholder" if found[1] else "quoted" if found[0][0] in "'\"" else "text"
        touched = where[max(end - 1, 0) : end] + where[found.end() : found.end() + 1]
        if kind == "placeholder" and (before in {"placeholder", "quoted"} or _WORD.search(touched)):
            raise BadRequestError(_TOUCHING)
        if kind == "quoted" and before == "placeholder":
            raise BadRequestError(_TOUCHING)
        if kind != "text" or not found[0].isspace():
            before = kind
        parts.append(found[0] if found[1] is None else f" {_value(int(found[1]), values)} ")
        used |= {int(found[1])} if found[1] else set()
        size += len(parts[-1])
        if size > _MOST_CONDITION:
            raise BadRequestError(f"where has more than {_MOST_CONDITION} characters with the values of params")
        end = found.end()
    return "".join(parts), used


def _value(number: int, values: Mapping[int, str]) -> str:
    if number not in values:
        raise BadRequestError(f"params lacks the value of ${number}")
    return _literal(values[number])


def _literal(value: str) -> str:
    if "\\" in value:
        raise BadRequestError("params has a value with a backslash, which is not supported")
    return "'" + value.replace("'", "''") + "'"
