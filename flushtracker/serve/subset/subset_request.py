"""``Subset``: the part of a shape that a client asks for, from a query string or from the JSON of a body."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from flushtracker.serve.refusals import BadRequestError

PREFIX: Final = "subset__"
MOST_BODY: Final = 64 << 10
"""The maximum size of a body, in bytes."""

_STRUCTURED: Final = ("where_expr", "order_by_expr")
"""Clients send what these say as text, too."""
_NAMES: Final = ("where", "params", "order_by", "limit", "offset", *_STRUCTURED)
_PARAM: Final = re.compile(r"params\[([^\]]*)\]")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,2}", re.ASCII)
_COUNT: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_MOST_TEXT: Final = 8_000

Params = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Subset:
    """The rows that match ``where``, in the order of ``order_by``, without the first ``offset``, at most ``limit``.

    The texts are not parsed yet. ``params`` are the values of ``$1`` and so on.
    """

    where: str | None = None
    params: Params = ()
    order_by: str | None = None
    limit: int | None = None
    offset: int = 0


def subset_of(given: Mapping[str, str], body: bytes | None = None) -> Subset | None:
    """The subset that a request asks for; ``None`` if it asks for none. A request with a ``body`` always does.

    Raises:
        BadRequestError: it is malformed, or a part of it is given twice.
    """
    found: dict[str, Any] = {name.removeprefix(PREFIX): text for name, text in given.items() if name.startswith(PREFIX)}
    if body is None and not found:
        return None
    values = found.pop("params", None)
    numbered = {number[1]: found.pop(name) for name in [*found] if (number := _PARAM.fullmatch(name))}
    if body:
        more = _document(body, "the body")
        more = _nested(more)
        if twice := [name for name in more if name in found or (name == "params" and (values or numbered))]:
            raise BadRequestError(f"{PREFIX}{twice[0]} is given in the address and in the body")
        values = more.pop("params", values)
        found |= more
    unknown = sorted(name for name in found if name not in _NAMES)
    if unknown:
        name = unknown[0] if unknown[0].isidentifier() and len(unknown[0]) < 40 else "…"
        raise BadRequestError(f"not supported by this server: {PREFIX}{name}")
    if any(structured in found and structured.removesuffix("_expr") not in found for structured in _STRUCTURED):
        raise BadRequestError(f"{PREFIX}where_expr and {PREFIX}order_by_expr are not read; send the texts, too")
    if numbered and values is not None:
        raise BadRequestError(f"{PREFIX}params is given in two ways")
    return Subset(
        _text(found, "where"),
        params_of(numbered if values is None else values, f"{PREFIX}params"),
        _text(found, "order_by"),
        _count(found, "limit"),
        _count(found, "offset") or 0,
    )


def params_of(values: Any, name: str) -> Params:
    """The values of placeholders by number, of an object or its JSON; numbers stand for their texts."""
    found = _document(values.encode(), name) if isinstance(values, str) else values
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise BadRequestError(f"{name} is not one JSON object of texts")
    if not all(_NUMBER.fullmatch(number) for number in found):
        raise BadRequestError(f"{name} has a key that is not a number from 1")
    return tuple(sorted((int(number), value) for number, value in found.items()))


def _nested(document: dict[str, Any]) -> dict[str, Any]:
    """A body may have all as one object ``subset``."""
    if document.keys() != {"subset"}:
        return document
    if not isinstance(document["subset"], dict):
        raise BadRequestError("subset of the body is not a JSON object")
    return dict(document["subset"])


def _document(text: bytes, name: str) -> dict[str, Any]:
    """A JSON object; its numbers are texts, so that none is rounded."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise BadRequestError(f"{name} has a key twice")
        return found

    def refuse(_constant: str) -> NoReturn:
        raise ValueError

    try:
        found = json.loads(
            text.decode(), object_pairs_hook=unique, parse_int=str, parse_float=str, parse_constant=refuse
        )
    except (ValueError, RecursionError):
        # The cause is dropped because it could quote what was sent.
        raise BadRequestError(f"{name} is not JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise BadRequestError(f"{name} is not one JSON object")
    return found


def _text(found: Mapping[str, Any], name: str) -> str | None:
    text = found.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise BadRequestError(f"{PREFIX}{name} is not a text")
    if len(text) > _MOST_TEXT:
        raise BadRequestError(f"{PREFIX}{name} has more than {_MOST_TEXT} characters")
    if not text.isprintable() and any(each < " " and each not in "\t\n\r" for each in text):
        raise BadRequestError(f"{PREFIX}{name} has a control character")
    return text


def _count(found: Mapping[str, Any], name: str) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    if not isinstance(text, str) or not _COUNT.fullmatch(text):
        raise BadRequestError(f"{PREFIX}{name} is not a number from 0")
    return int(text)
