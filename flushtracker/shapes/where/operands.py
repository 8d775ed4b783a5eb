"""The operands of a condition for one table: columns and literals with their types, and how to evaluate them."""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from flushtracker.errors import DecodeError, ShapeError, did_you_mean
from flushtracker.shapes.item_key import sql_name
from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.column_types import enum_type, is_row, type_description, type_of
from flushtracker.shapes.where.sql_values import TYPES, SqlType, Value, array_type
from flushtracker.shapes.where.three_valued import Evaluate, constantly, mapped
from flushtracker.shapes.where.tree import Constant, EnumName
from flushtracker.wal.changes import Column, Relation, Row

_JAVASCRIPT_TIME: Final = re.compile(r"(([0-9]{4}-[0-9]{2}-[0-9]{2})T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3})Z")
_KEEP_BLANKS: Final = (*sql_values.TEXTS, "enum", "uuid")


@dataclass(frozen=True, slots=True)
class Operand:
    """``type`` is ``None`` for a literal typed by the other operands; ``constant`` is set for every literal."""

    type: SqlType | None
    evaluate: Evaluate
    label: str
    constant: Constant | None = None

    def __str__(self) -> str:
        return self.label if self.type is None else f"{self.label} ({self.type.name})"

    def is_one_of(self, *families: sql_values.Family) -> bool:
        """Whether its type belongs to ``families``, or may, because it is an untyped literal."""
        return self.type is None or self.type.family in families


def literal_value(constant: Constant, *targets: SqlType) -> Value:
    """The value of a literal, converted to each of ``targets`` in turn; a quoted one has the first as its type.

    Raises ``ValueError`` if it is not a value of its own type, or is out of the range of another.
    """
    if constant.text is None:
        return None
    own = targets[0] if constant.type_oid is None else TYPES[constant.type_oid]
    value = _parsed(constant.text if own.family in _KEEP_BLANKS else constant.text.strip(sql_values.BLANKS), own)
    try:
        for target in targets:
            value, own = sql_values.converted(value, own, target), target
    except OverflowError as error:
        raise ValueError("out of range") from error
    return value


def _parsed(text: str, sql_type: SqlType) -> Value:
    """A literal's value; JavaScript writes UTC beside every time, and types without a time zone ignore that."""
    if sql_type.family == "datetime" and (found := _JAVASCRIPT_TIME.fullmatch(text)) is not None:
        value = TYPES[sql_values.TIMESTAMP].parse(found[1])
        return value if sql_type.oid == sql_values.TIMESTAMP else sql_type.parse(found[2])
    return sql_type.parse(text)


class Operands:
    """Resolves the columns and literals of one condition, and collects readers for the columns that it uses."""

    def __init__(self, relation: Relation) -> None:
        self.readers: list[Callable[[Row], Value]] = []
        self.table = ".".join(relation.table)
        self._columns = {column.name: column for column in relation.columns}
        self._slots: dict[tuple[str, bool], int] = {}

    def refused(self, fact: str, advice: str) -> ShapeError:
        return ShapeError(f"{self.table}: where {fact}; {advice}")

    def column(self, name: str) -> Operand:
        column = self._column(name)
        sql_type = type_of(column)
        if sql_type is None:
            raise self.refused(
                f'reads column "{name}" of {type_description(column)}',
                f'test it only with "{name}" IS [NOT] NULL, if at all',
            )
        return Operand(sql_type, self._slot(name, sql_type), f'column "{name}"')

    def raw_column(self, name: str) -> Evaluate:
        """The text of a column of any type, not parsed, to tell whether it is NULL."""
        if is_row(self._column(name)):
            raise self.refused(
                f'tests whether column "{name}" of a composite type is NULL, which depends on its fields', "remove that"
            )
        return self._slot(name, None)

    def enum(self, name: EnumName) -> SqlType:
        """The enum of that name, or an array of it; some column of the table must have it."""
        types = {column.user_type.enum for column in self._columns.values() if column.user_type is not None}
        found = [each for each in types if each is not None and name.matches(each.schema, each.name)]
        if len(found) != 1:
            fact = "several types of columns have that name" if found else "no column is of an enum of that name"
            raise self.refused(f"casts to {name}, but {fact}", "cast to the type of a column, with its schema")
        return array_type(0, enum_type(found[0])) if name.is_array else enum_type(found[0])

    def literal(self, operand: Operand, *targets: SqlType) -> Value:
        if operand.constant is None:
            return None
        try:
            return literal_value(operand.constant, *targets)
        except ValueError as error:
            raise self.refused(
                f"has {operand.label}, which is not of type {(operand.type or targets[0]).name} ({error})",
                "write it as PostgreSQL prints that type",
            ) from error

    def typed(self, operand: Operand, target: SqlType) -> Evaluate:
        """The operand's evaluation as ``target``, the type that it is compared in."""
        if operand.constant is not None:
            return constantly(self.literal(operand, target))
        source = operand.type
        if source is not None and (source.family, target.family) == ("exact", "float"):
            return mapped(lambda value: sql_values.converted(value, source, target), operand.evaluate)
        return operand.evaluate

    def common(self, operands: Sequence[Operand], construct: str) -> SqlType:
        """The type that all operands are compared in; text if they are all untyped literals."""
        common, first = None, operands[0]
        for operand in operands:
            if operand.type is None:
                continue
            if common is None:
                common, first = operand.type, operand
                continue
            common = sql_values.common_type(common, operand.type)
            if common is None:
                raise self.refused(
                    f"has {first} {construct} {operand}, whose types are incompatible",
                    "compare a column with a literal of its own type",
                )
        return common or TYPES[sql_values.TEXT]

    def missing(self, names: Iterable[str]) -> list[ShapeError]:
        """An error for each of these columns that the table lacks."""
        return [
            self.refused(
                f'reads column "{name}", which the table does not have{did_you_mean(name, self._columns, sql_name)}',
                "correct the name, and put it in double quotes if it has capitals",
            )
            for name in names
            if name not in self._columns
        ]

    def _column(self, name: str) -> Column:
        for error in self.missing([name]):
            raise error
        return self._columns[name]

    def _slot(self, name: str, sql_type: SqlType | None) -> Evaluate:
        slot = self._slots.setdefault((name, sql_type is None), len(self.readers))
        if slot == len(self.readers):
            self.readers.append(_reader(self.table, name, sql_type))
        return operator.itemgetter(slot)


def _reader(table: str, name: str, sql_type: SqlType | None) -> Callable[[Row], Value]:
    """A function that reads a column of a row; without a type, as raw text. Errors never show the value."""

    def read(row: Row) -> Value:
        if name not in row:
            raise DecodeError(f'{table}: column "{name}" is absent from a row, but where reads it; send whole rows')
        text = row[name]
        if text is None or sql_type is None:
            return text
        try:
            return sql_type.parse(text)
        except ValueError:
            # The cause is dropped because it could quote the value.
            raise DecodeError(
                f'{table}: column "{name}" holds a value that cannot be read as {sql_type.name}; check the column\'s '
                "type, its labels if it is an enum, and that DateStyle is ISO and IntervalStyle is postgres for the "
                "connection"
            ) from None

    return read
