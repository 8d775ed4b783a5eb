"""PostgreSQL's texts as the JSON values that Debezium's PostgreSQL connector sends, but for dates and times.

Each function raises ``ValueError`` for a text of another type. The texts are those of ``bytea_output`` hex and
``lc_monetary`` C, as capture's connections have them.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable
from struct import pack
from typing import Any, Final, TypeAlias

from flushtracker.errors import DecodeError
from flushtracker.shapes.where.array_values import array_parser

Converter: TypeAlias = Callable[[str], Any]
"""Makes the JSON value of a text that is not NULL; raises ``ValueError`` for a text of another type."""

_SPECIAL_NUMBERS: Final = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
_HSTORE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, )?', re.DOTALL)
_CURRENCY: Final = str.maketrans("", "", "$,")


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def is_true(text: str) -> bool:
    return text == "t"


def hex_bytes(text: str) -> str:
    if not text.startswith("\\x"):
        raise ValueError("not in hex")
    return base64(bytes.fromhex(text[2:]))


def floating(text: str) -> float | str:
    return text if text in _SPECIAL_NUMBERS else float(text)


def numeric(text: str) -> str:
    return _SPECIAL_NUMBERS.get(text, text)


def money(text: str) -> str:
    return text.translate(_CURRENCY)


def one_bit(text: str) -> bool:
    return text == "1"


def bits(text: str) -> str:
    """Bytes, the last bits first, without the leading zeros."""
    number = int(text, 2) if text else 0
    return base64(number.to_bytes((number.bit_length() + 7) // 8, "little"))


def point(text: str) -> dict[str, Any]:
    x, y = text.strip("()").split(",")
    return {"x": floating(x), "y": floating(y), "wkb": base64(pack("<BIdd", 1, 1, float(x), float(y))), "srid": None}


def hstore(text: str) -> str:
    """A JSON object as text."""
    found: dict[str, str | None] = {}
    place = 0
    while (pair := _HSTORE.match(text, place)) is not None:
        found[_unescaped(pair[1])] = None if pair[2] is None else _unescaped(pair[2])
        place = pair.end()
    if place < len(text):
        raise ValueError("not an hstore")
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def array(convert: Converter, text: str, *, is_flat: bool) -> list[Any]:
    """``is_flat``: the elements of all dimensions in one list."""
    parsed = array_parser(convert)(text)
    found = list(parsed.items)
    for _, length in () if is_flat else parsed.bounds[:0:-1]:
        found = [found[start : start + length] for start in range(0, len(found), length)]
    return found


def json_value(convert: Converter, text: str | None, column: str) -> Any:
    """The JSON value of a column's text; raises ``DecodeError``, without the text, if it is not of the type."""
    if text is None:
        return None
    try:
        return convert(text)
    except ValueError as error:
        raise DecodeError(f"column {column!r} has a value that is not of its type") from error
