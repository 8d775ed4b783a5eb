"""The built-in reference types, such as ``regclass``, whose text is a name and changes when the object is renamed."""

from collections.abc import Mapping
from typing import Final

from flushtracker.shapes.type_binding import TypeBinding, made_of

_NAMES: Final = {
    24: "regproc",
    1008: "regproc[]",
    2202: "regprocedure",
    2207: "regprocedure[]",
    2203: "regoper",
    2208: "regoper[]",
    2204: "regoperator",
    2209: "regoperator[]",
    2205: "regclass",
    2210: "regclass[]",
    2206: "regtype",
    2211: "regtype[]",
    3734: "regconfig",
    3735: "regconfig[]",
    3769: "regdictionary",
    3770: "regdictionary[]",
    4089: "regnamespace",
    4090: "regnamespace[]",
    4096: "regrole",
    4097: "regrole[]",
    4191: "regcollation",
    4192: "regcollation[]",
    1033: "aclitem",
    1034: "aclitem[]",
    # The rows of these catalogs, which have such columns.
    71: "pg_type",
    75: "pg_attribute",
    81: "pg_proc",
    83: "pg_class",
}


def reference_type(type_oid: int, types: Mapping[int, TypeBinding]) -> str | None:
    """The reference type that a type is, or is made of; ``None`` if there is none. ``types`` has user types only."""
    oids = [type_oid, *(part for binding in made_of([type_oid], types) for part in binding.parts)]
    return next((_NAMES[oid] for oid in oids if oid in _NAMES), None)
