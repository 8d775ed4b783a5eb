"""Shapes: which rows of a table belong to a shape, and what a change of the table is for the shape.

A :class:`Shape` is a definition; a :class:`BoundShape` is that definition for one relation, as it is now. A table
that is altered is another relation, and so is each partition: the shape is bound to each, and refused where it cannot
be kept.

An update is judged by its old row and its new one: both in the shape, an update; only the new, an insert; only the
old, a delete. That needs the old row, of which the server sends the replica identity: the whole row under FULL, else
the key. Without any identity the server lets no row be updated or deleted, so there is no old row to know.

A partition's changes count as changes of the table it belongs to. What a shape cannot follow is a TRUNCATE of *some*
of its partitions, because its rows do not say which partition they are in. It takes nothing from it: the rows stay in
the shape, as those of a partition that was dropped or detached do, where the server sends nothing at all. Taking it
for a TRUNCATE of the table would lose the live rows of all other partitions. A TRUNCATE of the whole table reaches us
as one of every partition; :func:`empty_partitions` tells when they have all come.

The key's columns come in the order of ``primary_key``, else in the relation's; with partitions, whose orders may
differ, in the order of their names.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.where import Where, parse_where
from flushtracker.shapes.where.required_values import RequiredValues
from flushtracker.wal.changes import Change, Delete, Insert, Relation, Row, TableName, Truncate, Update


@dataclass(frozen=True, slots=True)
class BoundShape:
    """A shape's definition for one relation. ``columns`` are those that its items carry, in the relation's order."""

    definition: ShapeDefinition
    key_columns: tuple[str, ...]
    columns: tuple[str, ...]
    identity: tuple[str, ...]
    """The columns that every old row holds; none where the server sends no old rows."""
    matches: Callable[[Row], bool | None] | None
    """The definition's ``where`` for this relation; only ``True`` takes a row."""

    @property
    def table(self) -> TableName:
        """The table that the shape's keys name, also for rows of its partitions."""
        return self.definition.table

    def filter(self, change: Change) -> Change | None:
        """What ``change`` is for the shape, or ``None`` where none of its rows is concerned.

        The row of an update that became an insert has its unchanged TOAST columns filled in where the old row is known;
        where it is not, they are absent. TRUNCATE passes whatever ``where`` says; that of one partition is the caller's
        to judge first (:func:`empty_partitions`).

        Raises:
            DecodeError: ``where`` cannot be judged: a column that it reads is absent, or not of its type.
        """
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
                f"{self._subject(update)} has no old row, as the table has no replica identity; give it one, or remove "
                "the shape"
            )
        if update.old is None:
            # No column of the identity has changed, and `where` reads no others: the old row is where the new one is.
            return update if self._is_in(update, update.new) else None
        new = filled_new_row(update)
        match self._is_in(update, update.old), self._is_in(update, new):
            case True, True:
                return update
            case False, True:
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

    def key_of(self, change: Change, row: Row) -> tuple[str | None, ...]:
        """The key's values in ``row``, which is of ``change``; raises ``DecodeError`` where one is absent."""
        try:
            return tuple([row[column] for column in self.key_columns])
        except KeyError as error:
            raise DecodeError(
                f"{self._subject(change)} comes without its key column {error.args[0]}; remove the shape, and set "
                "REPLICA IDENTITY FULL on the table before it is added under a new id"
            ) from error

    def _subject(self, change: Change) -> str:
        kind, table = type(change).__name__.lower(), _dotted(change.relation.table)
        return f"{_name(self.definition)}: the {kind} of {table} at {change.offset}"


class Shape:
    """A definition that can be bound to relations.

    Raises:
        ShapeError: ``where`` cannot be parsed, or uses what is not supported.
    """

    __slots__ = ("_where", "definition")

    def __init__(self, definition: ShapeDefinition) -> None:
        self.definition = definition
        self._where: Where | None = None
        if definition.where is not None:
            try:
                self._where = parse_where(definition.where)
            except ShapeError as error:
                raise ShapeError(f"{_name(definition)}: {error}") from error

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The tables whose changes concern the shape: its own, and the partitions listed."""
        return tuple(dict.fromkeys((self.definition.table, *self.definition.partitions)))

    @property
    def form(self) -> Hashable:
        """Of shapes of one form, all can be kept on a relation or none, but for the literals of their ``where``.

        ``None``: nothing is known of others.
        """
        if self._where is None or self._where.form is None:
            return None
        return self._where.form, self.definition.columns, self.definition.primary_key

    def bind(self, relation: Relation) -> BoundShape:
        """The shape for ``relation``, as that is now.

        Raises:
            ShapeError: the relation lacks a column that the definition names, or does not send the old rows it needs.
        """
        return _bind(self.definition, self._where, relation)

    def required_values(self, relation: Relation) -> RequiredValues:
        """The values that a row of ``relation`` must have to be in the shape.

        ``relation`` is one to which a shape of this form can be bound. Raises ``ValueError`` where this one cannot.
        """
        return {} if self._where is None else self._where.required_values(relation)


def empty_partitions(
    definition: ShapeDefinition, empty: frozenset[TableName], change: Change
) -> tuple[frozenset[TableName], bool]:
    """Which partitions are empty after ``change``, given those ``empty`` before; and whether ``change`` has an effect.

    ``empty`` starts as no partition in each transaction: what a transaction does not tell is not known. Only the
    TRUNCATE that leaves every partition empty has an effect, and it is one on the shape as a whole. A change that
    concerns none of the shape's rows may be left out.
    """
    table = change.relation.table
    if table not in definition.partitions or table == definition.table:
        return empty, True
    if not isinstance(change, Truncate):
        return empty - {table}, True
    empty |= {table}
    return empty, empty.issuperset(definition.partitions)


def filled_new_row(update: Update) -> Row:
    """The new row, with the unchanged TOAST columns that it leaves out filled in from the old row, if that has them."""
    return update.new if update.old is None else {**update.old, **update.new}


def _bind(definition: ShapeDefinition, where: Where | None, relation: Relation) -> BoundShape:
    shape = f"{_name(definition)} on {_dotted(relation.table)}"
    names = tuple(column.name for column in relation.columns)
    identity = names if relation.replica_identity == "full" else relation.key_columns
    for option, wanted in (("columns", definition.columns), ("primary_key", definition.primary_key)):
        _require(wanted, names, f"{shape}: {option} names", f"which the table lacks; it has {', '.join(names)}")
    try:
        matches = None if where is None else where.bind(relation)
    except ShapeError as error:
        raise ShapeError(f"{_name(definition)}: {error}") from error
    key_columns = definition.primary_key or relation.key_columns or names
    if definition.partitions and definition.primary_key is None:
        # Partitions may have their columns in different orders, and a row has to have one key in all of them.
        key_columns = tuple(sorted(key_columns))
    if identity:
        schema_and_name = ".".join(quoted(part) for part in relation.table)
        remedy = (
            f"but its old rows hold only {', '.join(identity)}; ALTER TABLE {schema_and_name} REPLICA IDENTITY FULL"
        )
        # Each column read must be in the old row: else nobody could tell whether that was in the shape, or its key.
        if where is not None:
            _require(sorted(where.columns), identity, f"{shape}: where reads", f"{remedy}, or filter by those alone")
        _require(definition.primary_key, identity, f"{shape}: primary_key names", f"{remedy}, or name those alone")
    chosen = names if definition.columns is None else {*definition.columns, *key_columns}
    columns = tuple(name for name in names if name in chosen)
    return BoundShape(definition, key_columns, columns, identity, matches)


def _require(wanted: Iterable[str] | None, known: Iterable[str], subject: str, remedy: str) -> None:
    missing = [name for name in wanted or () if name not in known]
    if missing:
        raise ShapeError(f"{subject} {', '.join(missing)}, {remedy}")


def _name(definition: ShapeDefinition) -> str:
    return f"shape {definition.id!r}"


def _dotted(table: TableName) -> str:
    return ".".join(table)


def quoted(text: str) -> str:
    """``text`` in double quotes, those inside it doubled, as SQL writes an identifier."""
    return '"' + text.replace('"', '""') + '"'
