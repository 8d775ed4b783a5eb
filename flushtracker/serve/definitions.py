"""``Definitions``: which shape a client means that defines one, rather than naming it by its id.

Compared is what the definitions mean, not their texts: tables and columns by their names in the catalog, conditions by
their canonical forms (:mod:`flushtracker.shapes.where.canonical`).
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from flushtracker.errors import ShapeError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.serve.refusals import BadRequestError
from flushtracker.serve.shape_request import AskedDefinition
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.shapes.type_binding import user_types
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Column, Relation, TableName

_NAME: Final = r'"((?:[^"]|"")+)"|([A-Za-z_\u0080-\U0010ffff][\w$]*)'
_TABLE: Final = re.compile(rf"(?:(?:{_NAME})\.)?(?:{_NAME})")
_COLUMN: Final = re.compile(rf"\s*(?:{_NAME})\s*(,|$)")
_TOKENS: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$([0-9]{1,3})|[^'"$]+""")
_AMBIGUOUS: Final = ("--", "/*", "\\")
_KEPT: Final = 10_000

_Form = tuple[Any, ...]


class Definitions:
    """The shapes of one registry that can be read. For one thread; forms are made when a table is first asked for."""

    def __init__(self, registry: Registry, source: str | None) -> None:
        self._by_table: dict[TableName, list[ShapeEntry]] = {}
        self._registry = registry
        for entry in registry.entries.values():
            if isinstance(entry, ShapeEntry) and not entry.is_condensed and source in {None, entry.source}:
                self._by_table.setdefault(entry.definition.table, []).append(entry)
        self._forms: dict[TableName, Mapping[_Form, str]] = {}
        self._answers: OrderedDict[AskedDefinition, str | None] = OrderedDict()

    def shape_id(self, asked: AskedDefinition) -> str | None:
        """The id of the shape that is defined so; ``None`` if there is none.

        Raises:
            BadRequestError: the definition cannot be read.
        """
        if asked not in self._answers:
            self._answers[asked] = self._find(asked)
            while len(self._answers) > _KEPT:
                self._answers.popitem(last=False)
        return self._answers[asked]

    def _find(self, asked: AskedDefinition) -> str | None:
        table = _table(asked.table)
        where, columns = _where(asked), _columns(asked.columns)
        entries = self._by_table.get(table)
        if entries is None:
            return None
        if table not in self._forms:
            self._forms[table] = dict(self._table_forms(entries))
        for entry in entries:
            binding = self._registry.table_of(entry)
            # The key is always among the columns, whether it is named or not.
            chosen = None if columns is None else columns | set(_key(entry, binding))
            form = _form(where, _relation(binding), chosen, asked.replica)
            if (found := self._forms[table].get(form)) is not None:
                return found
        return None

    def _table_forms(self, entries: Iterable[ShapeEntry]) -> Iterable[tuple[_Form, str]]:
        # The last of several that are defined alike counts: a live one, and of those the first by its id.
        ordered = sorted(entries, key=lambda each: each.definition.id, reverse=True)
        for entry in sorted(ordered, key=lambda each: each.removed_at is None):
            definition, table = entry.definition, self._registry.table_of(entry)
            columns = None if definition.columns is None else frozenset({*definition.columns, *_key(entry, table)})
            # A condition that an earlier release has accepted may be refused by this one.
            with suppress(BadRequestError):
                yield _form(definition.where, _relation(table), columns, definition.replica), definition.id


def _key(entry: ShapeEntry, table: TableBinding | None) -> tuple[str, ...]:
    return entry.definition.primary_key or (() if table is None else table.key)


def _form(where: str | None, relation: Relation | None, columns: frozenset[str] | None, replica: str) -> _Form:
    try:
        condition = None if where is None else parse_where(where).canonical(relation)
    except ShapeError as error:
        raise BadRequestError(str(error)) from error
    return condition, columns, replica


def _relation(table: TableBinding | None) -> Relation | None:
    if table is None:
        return None
    columns = tuple(Column(column.name, column.type_oid) for column in table.columns)
    relation = Relation(table.oid, *table.table, "default", columns)
    return relation.with_types(user_types(table.types))


def _table(text: str) -> TableName:
    """A table as SQL names it; without a schema it is in ``public``, as for Electric.

    >>> _table("Items"), _table('"My.Schema"."T"')
    (('public', 'items'), ('My.Schema', 'T'))
    """
    found = _TABLE.fullmatch(text)
    if found is None:
        raise BadRequestError('table is not a name such as items, public.items or "Public"."Items"')
    schema = _name(found[1], found[2]) if found[1] or found[2] else "public"
    return schema, _name(found[3], found[4])


def _columns(text: str | None) -> frozenset[str] | None:
    """Names of columns, separated by commas, each as SQL writes it.

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
    """PostgreSQL maps the case of ASCII letters alone in a name without quotes."""
    if quoted is not None:
        return quoted.replace('""', '"')
    return re.sub("[A-Z]", lambda found: found[0].lower(), plain or "")


def _where(asked: AskedDefinition) -> str | None:
    """The condition with the values of its placeholders as literals."""
    where, values = asked.where, dict(asked.params)
    if where is None:
        if values:
            raise BadRequestError("params has values, but there is no where")
        return None
    if not values and "$" not in where:
        return where
    if any(mark in where for mark in _AMBIGUOUS):
        raise BadRequestError("where has a comment or a backslash beside placeholders, which could be read in two ways")
    parts, end, used = list[str](), 0, set[int]()
    while end < len(where):
        found = _TOKENS.match(where, end)
        if found is None:
            raise BadRequestError("where has a quote without its end, or a $ without a number")
        if found[1] is not None:
            number = int(found[1])
            if number not in values:
                raise BadRequestError(f"params lacks the value of ${number}")
            used.add(number)
        parts.append(found[0] if found[1] is None else _literal(values[int(found[1])]))
        end = found.end()
    if used != values.keys():
        raise BadRequestError("params has a value that where does not name")
    return "".join(parts)


def _literal(value: str) -> str:
    if "\\" in value:
        raise BadRequestError("params has a value with a backslash, which is not supported")
    return "'" + value.replace("'", "''") + "'"
