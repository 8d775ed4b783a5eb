"""Shapes: which rows of a table belong to a shape, and what a change of the table means for the shape.

A :class:`Shape` is a definition; a :class:`BoundShape` is that definition bound to one relation. An altered table is a
new relation, and so is a partition: the shape is bound to each layout, and refused where it cannot be kept.

An update is judged by its old row and its new row. If both are in the shape, it is an update; if only the new row is,
an insert; if only the old row is, a delete. That requires the old row. The server sends its replica identity: the whole
row under FULL, else the key. Without a replica identity the server allows no updates or deletes, so no old row is
needed. A relation's identity, as that of a new partition, may lack a column of old rows that the shape needs. Then its
inserts are still routed, and its first update or delete is refused.

A partition's changes count as changes of its parent table, except TRUNCATE
(:mod:`~flushtracker.shapes.routed_transaction`).

Key columns follow the order of ``primary_key``, or without one the relation's order. With partitions, whose column
orders may differ, they are then sorted by name.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import joined_prefix, partition_prefix, table_prefix
from flushtracker.shapes.relation_faults import (
    IdentityLack,
    column_faults,
    encoding_faults,
    identity_columns,
    identity_lacks,
)
from flushtracker.shapes.table_binding import Filter, dotted
from flushtracker.shapes.where import Where, parse_where
from flushtracker.shapes.where.column_types import label_type
from flushtracker.shapes.where.required_ranges import RequiredRanges
from flushtracker.shapes.where.required_values import RequiredValues
from flushtracker.wal.changes import Change, Delete, Insert, Relation, Row, TableName, Truncate, Update

_LabelParsers: TypeAlias = Sequence[tuple[str, Callable[[str], object]]]
"""Columns with enum values, each with a function that raises ``ValueError`` for an unknown label."""
_Predicate: TypeAlias = Callable[[Row], bool | None]


@dataclass(frozen=True, slots=True)
class BoundShape:
    """A shape bound to one relation. ``columns`` are those that its items carry, in the relation's order."""

    definition: ShapeDefinition
    key_columns: tuple[str, ...]
    columns: tuple[str, ...]
    identity: tuple[str, ...]
    """The columns that every old row contains; empty if the server sends no old rows."""
    matches: _Predicate | None
    """The definition's ``where`` bound to this relation; a row matches only if it returns ``True``."""
    key_prefix: str
    """The table's name in the shape's keys: the definition's, even for rows of its partitions."""
    has_all_columns: bool
    """Whether ``columns`` are all of the relation's columns."""
    enums: _LabelParsers
    item_form: Hashable
    """Shapes of the same form on the same relation have the same items for a change that they see alike."""
    lack: IdentityLack | None = None
    """The columns missing from old rows, without which updates and deletes cannot be judged."""

    def filter(self, change: Change) -> Change | None:
        """``change`` as the shape sees it, or ``None`` if it affects none of the shape's rows.

        When an update becomes an insert, its unchanged TOAST columns are filled in if the old row is known, and absent
        otherwise. TRUNCATE passes regardless of ``where``; the caller checks whether that of a partition has an effect
        (:func:`~flushtracker.shapes.routed_transaction.truncated`).

        Raises:
            ShapeError: the change has an old row, and old rows lack columns that the shape must know of them.
            DecodeError: ``where`` cannot be evaluated: a column that it reads is absent, or not of its type.
        """
        if self.lack is not None and isinstance(change, Update | Delete):
            raise self.lack.error(self.definition, [change.relation.table])
        match change:
            case Truncate():
                return change
            case Insert():
                return change if self._is_in(change, change.new) else None
            case Delete():
                return change if self._is_in(change, change.old) else None
            case Update():
                return self._filter_update(change)

    def _filter_update(self, update: Update) -> Change | None:
        if not self.identity:
            raise DecodeError(
                f"{self._subject(update)} has no old row because the table has no replica identity; set one, or "
                "remove the shape"
            )
        if self.matches is None:
            return update
        if update.old is None:
            # No identity column has changed, and `where` reads no others: both rows are in the shape, or neither is.
            return update if self._is_in(update, update.new) else None
        new = filled_new_row(update)
        match self._is_in(update, update.old), self._is_in(update, new):
            case True, True:
                return update
            case False, True:
                self.require_whole(update, new)
                return Insert(update.relation, update.offset, new)
            case True, False:
                return Delete(update.relation, update.offset, update.old)
        return None

    def _is_in(self, change: Change, row: Row) -> bool:
        if self.matches is None:
            return True
        try:
            return self.matches(row) is True
        except DecodeError as error:
            raise DecodeError(f"{self._subject(change)}: {error}") from error

    @property
    def empties_by_prefix(self) -> bool:
        """Whether a TRUNCATE removes only the rows whose keys begin with :meth:`prefix_in`, not all of the shape's."""
        return self.definition.keys_have_partitions or self.definition.compared is not None

    def prefix_in(self, relation: Relation) -> str:
        """The prefix of the keys of rows in ``relation``, which has the same columns as the bound one."""
        table, partition = self.definition.table, relation.relation_id if self.definition.keys_have_partitions else None
        if self.definition.compared is not None:
            return joined_prefix(table, partition)
        return self.key_prefix if partition is None else partition_prefix(table, partition)

    def key_of(self, change: Change, row: Row) -> tuple[str | None, ...]:
        """The key values of ``row``, a row of ``change``; raises ``DecodeError`` if one is absent."""
        try:
            return tuple([row[column] for column in self.key_columns])
        except KeyError as error:
            raise DecodeError(
                f"{self._subject(change)} lacks its key column {error.args[0]}; set REPLICA IDENTITY FULL on the "
                "table, and resync the shape"
            ) from error

    def require_whole(self, update: Update, new: Row) -> None:
        """Raise ``DecodeError`` if a row that enters the shape, or gets another key, lacks a value.

        The server leaves out a large value that the update does not change, and no earlier row of the log has it.
        """
        absent = [name for name in self.columns if name not in new]
        if absent:
            raise DecodeError(
                f"{self._subject(update)} does not include {', '.join(absent)}, a large value that it left unchanged, "
                "and no earlier row of the shape has it; set REPLICA IDENTITY FULL on the table, and resync the "
                "shape"
            )

    def require_labels(self, change: Change) -> None:
        """Raise ``DecodeError`` if a value of an enum in the shape's log is not a label that the catalog has.

        An unknown label was renamed since the change, or added after the catalog was read.
        """
        if column := _unknown_label(self.enums, change):
            raise DecodeError(
                f"{self._subject(change)} has a label in column {column} that its type no longer has: it was renamed; "
                "resync the shape"
            )

    def _subject(self, change: Change) -> str:
        kind, table = type(change).__name__.lower(), dotted(change.relation.table)
        return f"shape {self.definition.id!r}: the {kind} of {table} at {change.offset}"


class Shape:
    """A definition that can be bound to relations.

    Raises:
        ShapeError: ``where`` cannot be parsed, or uses an unsupported construct.
    """

    __slots__ = ("_where", "definition")

    def __init__(self, definition: ShapeDefinition) -> None:
        self.definition = definition
        self._where: Where | None = None
        if definition.where is not None:
            try:
                self._where = parse_where(definition.where)
            except ShapeError as error:
                raise ShapeError(f"{definition.subject('where')}: {error}") from error

    @property
    def tables(self) -> tuple[TableName, ...]:
        """Without a catalog: the tables whose changes affect the shape, its own and the listed partitions."""
        return tuple(dict.fromkeys((self.definition.table, *self.definition.partitions)))

    @property
    def form(self) -> Hashable:
        """Literals aside, either all shapes of a form can be kept on a relation, or none.

        ``None`` if other shapes of the same form cannot be recognized.
        """
        if self._where is None or self._where.form is None:
            return None
        definition = self.definition
        return self._where.form, definition.columns, definition.primary_key, definition.compared

    @property
    def used_columns(self) -> frozenset[str] | None:
        """The columns that determine the shape's content: its own, its key's and those of ``where``; ``None``: all."""
        definition = self.definition
        if definition.columns is None:
            return None
        return frozenset({*definition.columns, *(definition.primary_key or ()), *self.filtered_columns})

    @property
    def filtered_columns(self) -> frozenset[str]:
        """The columns that ``where`` reads; in a part, also those that subqueries compare."""
        read = frozenset[str]() if self._where is None else self._where.columns
        return read | (self.definition.compared or frozenset())

    @property
    def old_columns(self) -> frozenset[str]:
        """The columns that it must know of old rows: its key's, if known, and those that ``where`` reads."""
        read = frozenset[str]() if self._where is None else self._where.columns
        return read | frozenset(self.definition.primary_key or ())

    @property
    def may_overflow(self) -> bool:
        """Whether the server may raise an error for a row although ``where`` has an outcome for it here."""
        return self._where is not None and self._where.may_overflow

    @property
    def filter(self) -> Filter:
        """The columns that ``where`` reads; in a part, those that the whole condition reads of its table."""
        if self.definition.compared is not None:
            return Filter(self.filtered_columns, self.definition.mapped)
        return Filter() if self._where is None else Filter(self._where.columns, self._where.case_mappings)

    def bind(self, relation: Relation) -> BoundShape:
        """Bind the shape to ``relation``, even if its old rows lack columns.

        Raises:
            ShapeError: the first of its :meth:`faults` on the relation.
        """
        faults, matches = self._judge(relation)
        for error in faults:
            raise error
        bound, lacks = _bound(self.definition, matches, relation), self.identity_lacks(relation)
        return replace(bound, lack=lacks[0]) if lacks else bound

    def faults(self, relation: Relation) -> list[ShapeError]:
        """Why the shape cannot be kept on ``relation``, such as missing columns; empty if it can."""
        return self._judge(relation)[0]

    def identity_lacks(self, relation: Relation) -> tuple[IdentityLack, ...]:
        """The columns missing from old rows of ``relation``, which has all columns, to judge updates and deletes."""
        read = frozenset[str]() if self._where is None else self._where.columns
        return identity_lacks(self.definition, read, relation)

    def encoding_faults(self, relation: Relation, encoding: str) -> list[ShapeError]:
        """Why the shape, which fits ``relation``, cannot be kept in a database of this encoding; empty if it can."""
        return encoding_faults(self.definition, self._where, relation, encoding)

    def _judge(self, relation: Relation) -> tuple[list[ShapeError], _Predicate | None]:
        """The faults, and the condition bound to ``relation``, if any."""
        definition, where, matches = self.definition, self._where, None
        faults = column_faults(definition, relation)
        if where is not None:
            missing = where.missing_columns(relation)
            try:
                matches = None if missing else where.bind(relation)
            except ShapeError as error:
                missing = [error]
            faults += [ShapeError(f"{definition.subject('where')}: {error}") for error in missing]
        return faults, matches

    def required_values(self, relation: Relation) -> RequiredValues:
        """The values that a row of ``relation`` must have to be in the shape.

        A shape of this form can be bound to ``relation``. Raises ``ValueError`` if this one cannot.
        """
        return {} if self._where is None else self._where.required_values(relation)

    def required_ranges(self, relation: Relation) -> RequiredRanges:
        """The ranges that a row of ``relation`` must lie in to be in the shape; see :meth:`required_values`."""
        return {} if self._where is None else self._where.required_ranges(relation)


def filled_new_row(update: Update) -> Row:
    """The new row, with the unchanged TOAST columns that it omits filled in from the old row, if that has them."""
    return update.new if update.old is None else {**update.old, **update.new}


def _bound(definition: ShapeDefinition, matches: _Predicate | None, relation: Relation) -> BoundShape:
    names = tuple(column.name for column in relation.columns)
    key_columns = definition.primary_key or relation.key_columns or names
    if definition.partitions and definition.primary_key is None:
        # Column order may differ between partitions, but a row must have the same key in all of them.
        key_columns = tuple(sorted(key_columns))
    chosen = names if definition.columns is None else {*definition.columns, *key_columns}
    columns = tuple(name for name in names if name in chosen)
    prefix, enums = table_prefix(definition.table), _label_parsers(relation, chosen)
    identity, is_part = identity_columns(relation), definition.compared is not None
    form = definition.table, columns, key_columns, definition.replica, definition.keys_have_partitions, is_part
    return BoundShape(definition, key_columns, columns, identity, matches, prefix, columns == names, enums, form)


def _label_parsers(relation: Relation, columns: Collection[str]) -> _LabelParsers:
    types = [
        (column.name, label_type(column.user_type))
        for column in relation.columns
        if column.name in columns and column.user_type is not None
    ]
    return tuple((name, found.parse) for name, found in types if found is not None)


def _unknown_label(parsers: _LabelParsers, change: Change) -> str | None:
    """The first column with an unknown label; ``None`` if all are known."""
    for row in _rows(change) if parsers else ():
        for name, parse in parsers:
            text = row.get(name)
            if text is None:
                continue
            try:
                parse(text)
            except ValueError:
                return name
    return None


def _rows(change: Change) -> tuple[Row, ...]:
    match change:
        case Insert():
            return (change.new,)
        case Delete():
            return (change.old,)
        case Update():
            return (change.new,) if change.old is None else (change.old, change.new)
    return ()
