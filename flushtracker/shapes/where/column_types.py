"""The types of columns, built in or not: an enum, an array of one, or a domain over a supported built-in type."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from flushtracker.errors import listed
from flushtracker.shapes.where.sql_values import TYPES, SqlType, Value, array_type
from flushtracker.wal.changes import FIRST_USER_TYPE, Column, Relation, TypeKind, UserType

_KINDS: dict[TypeKind, str] = {
    "enum": "an enum",
    "domain": "a domain over an enum, or over a type that is not supported",
    "array": "an array of neither integers, text, uuid nor an enum",
    "composite": "a composite type",
    "range": "a range",
    "multirange": "a multirange",
    "base": "a type of an extension",
}


def type_of(column: Column) -> SqlType | None:
    """The type as which the column's values are compared; ``None`` if it is not supported.

    PostgreSQL compares a domain's values as its base type, or not at all if that is an enum.
    """
    if column.user_type is None:
        return TYPES.get(column.type_oid)
    found = column.user_type.unrestricted
    if isinstance(found, int):
        return TYPES.get(found)
    return None if column.user_type.kind == "domain" else label_type(column.user_type)


def type_of_column(relation: Relation, name: str) -> SqlType:
    """The type of a column of ``relation`` that a bound condition compares."""
    sql_type = next(type_of(column) for column in relation.columns if column.name == name)
    if sql_type is None:
        raise ValueError("not a supported type")
    return sql_type


def type_description(column: Column) -> str:
    """Describe the type of a column that is not supported, for a message."""
    oid, user_type = column.type_oid, column.user_type
    if user_type is None:
        unknown = " because the change stream does not say whether it is an enum, a domain or another type"
        return f"the type with OID {oid}, which is not supported{unknown if oid >= FIRST_USER_TYPE else ''}"
    return f"type {user_type}, {_KINDS[user_type.kind]}, which is not supported"


def is_row(column: Column) -> bool:
    """Whether values are composite: such a value IS NULL if all its fields are, although it is not NULL itself."""
    found = None if column.user_type is None else column.user_type.unrestricted
    return isinstance(found, UserType) and found.kind == "composite"


def label_type(user_type: UserType) -> SqlType | None:
    """The type of an enum, of an array of one, or of a domain over either; ``None`` for any other."""
    enum = user_type.enum
    if enum is None:
        return None
    found = user_type.unrestricted
    return enum_type(enum) if found is enum or not isinstance(found, UserType) else _array_type(found.oid, enum)


@lru_cache(maxsize=1000)
def enum_type(enum: UserType) -> SqlType:
    """The type of an enum; a value is the index of its label."""
    return SqlType(enum.oid, str(enum), "enum", 0, _label_parser(enum.labels), labels=enum.labels)


@lru_cache(maxsize=1000)
def _array_type(oid: int, enum: UserType) -> SqlType:
    return array_type(oid, enum_type(enum))


def _label_parser(labels: Sequence[str]) -> Callable[[str], Value]:
    places = {label: place for place, label in enumerate(labels)}

    def parse_label(text: str) -> int:
        if text not in places:
            raise ValueError(f"its labels are {listed(labels, most=10)}")
        return places[text]

    return parse_label
