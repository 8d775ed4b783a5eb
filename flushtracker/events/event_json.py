"""Reads and writes events as JSON, with ``msgspec``.

An event is one JSON object (RFC 8259) in UTF-8 without a byte order mark; unknown keys are ignored. ``msgspec`` refuses
everything else, except a duplicate key: it takes the last value, and another reader might take the first. So each event
is encoded again from its struct. If that gives the same text, as for nearly all events, no key is duplicated; any other
text is checked for duplicates.
"""

import json
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

from msgspec import DecodeError as MalformedError
from msgspec import ValidationError
from msgspec.json import Decoder, encode

from flushtracker.errors import START_ANEW, DecodeError, NewerEventError
from flushtracker.events.structs import NAME_PATTERN, VERSION
from flushtracker.wal.names import is_usable_name

_T = TypeVar("_T")


def dump_json(value: object) -> str:
    return encode(value).decode()


class EventReader(Generic[_T]):
    """Reads events of type ``kind``; ``what`` names them in a ``DecodeError``."""

    def __init__(self, what: str, kind: type[_T]) -> None:
        self._what = what
        self._kind = kind
        self._decode = Decoder(kind).decode

    def __reduce__(self) -> tuple[object, ...]:
        """A decoder cannot be pickled, so pickle the arguments."""
        return type(self), (self._what, self._kind)

    def __eq__(self, other: object) -> bool:
        """Whether both read the same events; a copy of a reader is equal to it."""
        return isinstance(other, EventReader) and (other._what, other._kind) == (self._what, self._kind)

    def __hash__(self) -> int:
        return hash((self._what, self._kind))

    def read(self, text: str | bytes) -> _T:
        """Read one event; raises ``DecodeError``, and ``NewerEventError`` for a greater version."""
        try:
            data = text.encode() if isinstance(text, str) else text
            found = self._decode(data)
        except ValidationError as error:
            raise self._refusal(data, error) from error
        except (MalformedError, UnicodeError, RecursionError) as error:
            raise DecodeError(f"{self._what} is not JSON: {_described(error)}") from error
        if encode(found) != data:
            self._require_unique_keys(data)
        return found

    def _refusal(self, data: bytes, error: ValidationError) -> DecodeError:
        """The version is checked first: another one may have other keys."""
        fields = self._require_unique_keys(data)
        if not isinstance(fields, dict) or "v" not in fields or _is_known(fields["v"]):
            return DecodeError(f"{self._what}: {_described(error)}")
        version = fields["v"]
        fact = f"{self._what} has v {version!r:.40}, this program reads v {VERSION}"
        if type(version) is int and version > VERSION:
            advice = f"; upgrade this program, then start it again; if a version before 0.1.0 wrote it, {START_ANEW}"
            return NewerEventError(fact + advice)
        return DecodeError(fact)

    def _require_unique_keys(self, data: bytes) -> Any:
        try:
            return _PLAIN.decode(data.decode())
        except DecodeError as error:
            raise DecodeError(f"{self._what} {error}") from error
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"{self._what} is not JSON: {_described(error)}") from error


def require_names(data: str | bytes, names: Iterable[str]) -> None:
    """Raise ``DecodeError`` if one of the ``names`` in the event ``data`` has a control character.

    In JSON these occur only as escapes, or beyond ASCII.
    """
    text = data.encode() if isinstance(data, str) else data
    if text.isascii() and b"\\" not in text and b"\x7f" not in text:
        return
    for name in names:
        if not is_usable_name(name):
            raise DecodeError(f"the name {name!r:.80} has a control character, such as a line break")


def _is_known(version: object) -> bool:
    return type(version) is int and version == VERSION


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise DecodeError(f"has the key {name!r:.40} twice")
            seen.add(name)
    return fields


_BETTER: Final = {
    f"Expected `str` matching regex {NAME_PATTERN!r}": "Expected no control character, such as a line break",
    "Input data was truncated": "it is cut off, or has half a surrogate pair",
}
_MOST_CHARACTERS: Final = 300
_PLAIN: Final = json.JSONDecoder(object_pairs_hook=_unique)


def _described(error: Exception) -> str:
    """Describe the error and its place without quoting the text."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error).removeprefix("JSON is malformed: ")
    for known, better in _BETTER.items():
        text = text.replace(known, better)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"
