"""The types of a shape's columns: PostgreSQL's text as Arrow values.

=============================================  ===========================================================
PostgreSQL                                     Arrow
=============================================  ===========================================================
``boolean``                                    ``bool``
``smallint``, ``integer``, ``bigint``, ``oid``  ``int16``, ``int32``, ``int64``, ``uint32``
``real``, ``double precision``                 ``float``, ``double``
``numeric(p, s)`` with 0 ≤ s ≤ p ≤ 38          ``decimal128(p, s)``; any other ``numeric``: ``string``
``date``                                       ``date32``
``timestamp``                                  ``timestamp[us]``
``timestamptz``                                ``timestamp[us, UTC]``
``bytea``                                      ``binary``
everything else                                ``string``, PostgreSQL's text
=============================================  ===========================================================

A value outside the Arrow type is an error: a numeric NaN, an infinite date, a year before 1 or after 9999.
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from flushtracker.errors import DecodeError
from flushtracker.shapes.table_binding import ColumnBinding

_NUMERIC: Final = 1700
_MOST_DIGITS: Final = 38
_HEADER: Final = 4


def _cast(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda texts: texts.cast(target)


def _bool(texts: pa.Array) -> pa.Array:
    known = pc.is_in(texts, pa.array(["t", "f"]))
    if pc.any(pc.invert(pc.or_(known, pc.is_null(texts)))).as_py():
        raise pa.ArrowInvalid("neither t nor f")
    return pc.equal(texts, "t")


def _timestamp_utc(texts: pa.Array) -> pa.Array:
    # The session's time zone is UTC, which PostgreSQL writes as +00.
    stripped = pc.replace_substring_regex(texts, r"\+00$", "Z")
    return stripped.cast(pa.timestamp("us", tz="UTC"))


def _bytes(texts: pa.Array) -> pa.Array:
    def value(text: str | None) -> bytes | None:
        if text is None:
            return None
        if not text.startswith("\\x"):
            raise ValueError("not hexadecimal")
        return bytes.fromhex(text[2:])

    return pa.array(map(value, texts.to_pylist()), pa.binary())


_READERS: Final[dict[int, Callable[[pa.Array], pa.Array]]] = {
    16: _bool,
    17: _bytes,
    20: _cast(pa.int64()),
    21: _cast(pa.int16()),
    23: _cast(pa.int32()),
    26: _cast(pa.uint32()),
    700: _cast(pa.float32()),
    701: _cast(pa.float64()),
    1082: _cast(pa.date32()),
    1114: _cast(pa.timestamp("us")),
    1184: _timestamp_utc,
}
"""By the OIDs of built-in types, which are the same in every database."""


def typed_column(name: str, texts: pa.Array, column: ColumnBinding) -> pa.Array:
    """The column's values with its type; raises ``DecodeError`` if one does not fit, without showing it."""
    try:
        if places := decimal_places(column):
            return texts.cast(pa.decimal128(*places))
        reader = _READERS.get(column.type_oid)
        return texts if reader is None else reader(texts)
    except (pa.ArrowException, ValueError) as error:
        raise DecodeError(
            f"column {name} has a value that does not fit its type (type OID {column.type_oid}); read it as text"
        ) from error


def decimal_places(column: ColumnBinding) -> tuple[int, int] | None:
    """The precision and scale of a ``numeric(p, s)`` that a decimal can hold; ``None`` for all other types.

    PostgreSQL's type modifier is ``(p << 16 | s) + 4``, where s has 11 bits and may be negative, or greater than p.
    """
    if column.type_oid != _NUMERIC or column.type_modifier < _HEADER:
        return None
    precision, scale = column.type_modifier - _HEADER >> 16 & 0xFFFF, column.type_modifier - _HEADER & 0x7FF
    return (precision, scale) if 0 < precision <= _MOST_DIGITS and scale <= precision else None
