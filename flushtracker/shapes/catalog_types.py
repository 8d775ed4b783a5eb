"""The built-in reference types, such as ``regclass``, whose text is a name and changes when the object is renamed."""

from collections.abc import Mapping
from typing import Final

from flushtracker.shapes.builtin_types import ITEMS, NAMES
from flushtracker.shapes.type_binding import TypeBinding, made_of

_REFERENCES: Final = {oid: name for oid, name in NAMES.items() if name.startswith("reg") or name == "aclitem"}
_ARRAYS: Final = {oid: f"{_REFERENCES[item]}[]" for oid, item in ITEMS.items() if item in _REFERENCES}
# The rows of these catalogs, which have such columns.
_ROWS: Final = {71: "pg_type", 75: "pg_attribute", 81: "pg_proc", 83: "pg_class"}
_NAMES: Final = _REFERENCES | _ARRAYS | _ROWS


def reference_type(type_oid: int, types: Mapping[int, TypeBinding]) -> str | None:
    """The reference type that a type is, or is made of; ``None`` if there is none. ``types`` has user types only."""
    oids = [type_oid, *(part for binding in made_of([type_oid], types) for part in binding.parts)]
    return next((_NAMES[oid] for oid in oids if oid in _NAMES), None)
