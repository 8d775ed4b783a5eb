"""A table with a column of each type, and the result of a ``where`` on one of its rows."""

from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Column, Relation, Row, UserType

COLUMNS = {
    "i2": 21,
    "i4": 23,
    "i8": 20,
    "n": 1700,
    "f4": 700,
    "f8": 701,
    "b": 16,
    "b2": 16,
    "b3": 16,
    "t": 25,
    "v": 1043,
    "c": 1042,
    "u": 2950,
    "d": 1082,
    "ts": 1114,
    "tz": 1184,
    "tm": 1083,
    "iv": 1186,
    "i4s": 1007,
    "i8s": 1016,
    "ts_": 1009,
    "us": 2951,
    "mood": 16_400,
    "doc": 114,
    "raw": 17,
    "feel": 16_410,
    "best": 16_410,
    "feels": 16_411,
    "felt": 16_412,
    "mail": 16_413,
    "addresses": 16_414,
    "pair": 16_415,
    "span": 16_416,
    "line/no": 23,
    "Mixed": 23,
}
MOOD = UserType(16_410, "public", "mood", "enum", ("sad", "ok", "happy"))
EMAIL = UserType(16_413, "public", "email", "domain", inner=25)
TYPES = {
    found.oid: found
    for found in (
        MOOD,
        UserType(16_411, "public", "_mood", "array", inner=MOOD),
        UserType(16_412, "public", "best_mood", "domain", inner=MOOD),
        EMAIL,
        UserType(16_414, "public", "_email", "array", inner=EMAIL),
        UserType(16_415, "public", "pair", "composite"),
        UserType(16_416, "public", "span", "range"),
    )
}
"""All but that of ``mood``, which is not known."""
NULLS: Row = dict.fromkeys(COLUMNS)
UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


def relation(columns: dict[str, int] = COLUMNS) -> Relation:
    found = Relation(1, "public", "t", "full", tuple(Column(name, oid) for name, oid in columns.items()))
    return found.with_types(TYPES)


def outcome(where: str, **values: str | None) -> bool | None:
    return parse_where(where).bind(relation())({**NULLS, **values})
