"""``TypeBinding``: the types of a table's columns when shapes were bound to it.

The server writes an enum's value as its label, and a composite value as its attributes. Altering the type changes the
texts of rows, but no changes of them are sent, and the stream does not even describe the table again. An *added* label
changes no row, so a shape survives it. That requires checking that each value is a known label: an unknown one was
renamed since. Values within composite types and ranges are not checked, so with those any change ends the shape.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from flushtracker.wal.changes import FIRST_USER_TYPE, TypeKind, UserType

MOST_LEVELS: Final = 100
"""Types nested more deeply are not read: each level takes a query, and nothing else limits the depth."""


@dataclass(frozen=True, slots=True)
class EnumLabel:
    """A label of an enum; ``oid`` is its identity, and ``version`` changes when it is renamed, or renamed back."""

    oid: int
    text: str
    version: int


@dataclass(frozen=True, slots=True)
class TypeBinding:
    """A user type: that of a column, or part of such a type.

    ``parts`` are the OIDs of the types it is made of: an array's element type, a composite type's attribute types, or
    the base type of a domain or range. ``attributes`` is the number of the last attribute that it ever had. ``labels``
    are an enum's, in order.
    """

    oid: int
    schema: str
    name: str
    kind: TypeKind
    parts: tuple[int, ...] = ()
    attributes: int = 0
    labels: tuple[EnumLabel, ...] = ()


def user_types(types: Iterable[TypeBinding]) -> dict[int, UserType]:
    """The types as conditions need them, by OID."""
    by_oid, found = {binding.oid: binding for binding in types}, dict[int, UserType]()

    def user_type(oid: int) -> UserType | int:
        binding = by_oid.get(oid)
        if binding is None:
            return oid
        if oid not in found:
            inner = user_type(binding.parts[0]) if binding.kind in ("domain", "array") else None
            labels = tuple(label.text for label in binding.labels)
            found[oid] = UserType(oid, binding.schema, binding.name, binding.kind, labels, inner)
        return found[oid]

    for oid in by_oid:
        user_type(oid)
    return found


def made_of(type_oids: Iterable[int], types: Mapping[int, TypeBinding]) -> tuple[TypeBinding, ...]:
    """The types with these OIDs, and all that they are made of, by OID."""
    found: dict[int, TypeBinding] = {}
    waiting = list(type_oids)
    while waiting:
        oid = waiting.pop()
        if oid in types and oid not in found:
            found[oid] = types[oid]
            waiting += types[oid].parts
    return tuple(found[oid] for oid in sorted(found))


def are_cut_off(types: Iterable[TypeBinding]) -> bool:
    """Whether some type is made of others that are missing because they are nested too deeply."""
    by_oid = {binding.oid: binding for binding in types}
    return any(part >= FIRST_USER_TYPE and part not in by_oid for each in by_oid.values() for part in each.parts)


def altered_type(type_oid: int, bound: Mapping[int, TypeBinding], now: Mapping[int, TypeBinding]) -> str | None:
    """How a type was altered so that its values' texts may have changed; ``None`` if it was not.

    Neither mapping has built-in types.
    """
    own = made_of([type_oid], bound)
    column_type = user_types(own).get(type_oid)
    checked = None if column_type is None else column_type.enum
    for before in own:
        may_grow = checked is not None and checked.oid == before.oid
        if reason := _altered(before, now.get(before.oid), may_grow=may_grow):
            return reason
    return None


def _altered(before: TypeBinding, now: TypeBinding | None, *, may_grow: bool) -> str | None:
    name = f"type {before.schema}.{before.name}"
    if now is None:
        return f"{name} was dropped"
    if (now.parts, now.attributes) != (before.parts, before.attributes):
        return f"{name} was altered, and with it the texts of its values"
    current = {label.oid: label for label in now.labels}
    for label in before.labels:
        if current.get(label.oid) != label:
            return f"label '{label.text}' of {name} {_renamed(label, current.get(label.oid))}"
    if len(now.labels) > len(before.labels) and not may_grow:
        return f"labels were added to {name}, and values within composite types and ranges are not checked for them"
    return None


def _renamed(before: EnumLabel, now: EnumLabel | None) -> str:
    if now is None:
        return "was removed"
    if now.text != before.text:
        return f"was renamed to '{now.text}'"
    return "was altered, and may have had another name for a time"
