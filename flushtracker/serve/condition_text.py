"""The text of a condition that a client sends, with the values of its placeholders as literals."""

import re
from collections.abc import Mapping
from typing import Final

from flushtracker.errors import ShapeError
from flushtracker.serve.refusals import BadRequestError
from flushtracker.shapes.where import Where, parse_where

_TOKENS: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$([0-9]{1,3})|[^'"$]+""")
_AMBIGUOUS: Final = ("--", "/*", "\\")
_WORD: Final = re.compile(r"[\w$]")
_TOUCHING: Final = "where has a placeholder beside a word, a quote or another placeholder"
_MOST_CONDITION: Final = 8_000
PUBLIC: Final = "public"
"""The schema of unqualified tables, as for Electric."""


def condition_of(where: str | None, params: tuple[tuple[int, str], ...]) -> str | None:
    """The condition, with the placeholders' values as literals; raises ``BadRequestError``."""
    values = dict(params)
    if where is None:
        if values:
            raise BadRequestError("params has values, but there is no where")
        return None
    if not values and "$" not in where:
        return where
    if any(mark in where for mark in _AMBIGUOUS):
        raise BadRequestError("where has a comment or a backslash beside placeholders, which could be read in two ways")
    filled, used = _filled(where, values)
    if used != values.keys():
        raise BadRequestError("params has a value that where does not name")
    return filled


def parsed_condition(where: str | None, schema: str | None = None) -> Where | None:
    """As ``parse_where``; raises ``BadRequestError``."""
    try:
        return None if where is None else parse_where(where, schema)
    except ShapeError as error:
        raise BadRequestError(str(error)) from error


def _filled(where: str, values: Mapping[int, str]) -> tuple[str, set[int]]:
    """The condition with literals for its placeholders, and the placeholders' numbers."""
    parts, used, end, size = list[str](), set[int](), 0, 0
    before = ""
    while end < len(where):
        found = _TOKENS.match(where, end)
        if found is None:
            raise BadRequestError("where has a quote without its end, or a $ without a number")
        kind = "placeholder" if found[1] else "quoted" if found[0][0] in "'\"" else "text"
        touched = where[max(end - 1, 0) : end] + where[found.end() : found.end() + 1]
        if kind == "placeholder" and (before in {"placeholder", "quoted"} or _WORD.search(touched)):
            raise BadRequestError(_TOUCHING)
        if kind == "quoted" and before == "placeholder":
            raise BadRequestError(_TOUCHING)
        if kind != "text" or not found[0].isspace():
            before = kind
        parts.append(found[0] if found[1] is None else f" {_value(int(found[1]), values)} ")
        used |= {int(found[1])} if found[1] else set()
        size += len(parts[-1])
        if size > _MOST_CONDITION:
            raise BadRequestError(f"where has more than {_MOST_CONDITION} characters with the values of params")
        end = found.end()
    return "".join(parts), used


def _value(number: int, values: Mapping[int, str]) -> str:
    if number not in values:
        raise BadRequestError(f"params lacks the value of ${number}")
    return _literal(values[number])


def _literal(value: str) -> str:
    if "\\" in value:
        raise BadRequestError("params has a value with a backslash, which is not supported")
    return "'" + value.replace("'", "''") + "'"
