"""What an event is, by definition: RFC 8259's grammar, read character by character, and the keys as a table.

Shares no code with :mod:`flushtracker.events`. Parsed numbers are ``int`` where they are written as integers, otherwise
``float``.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SPACE: Final = re.compile("[ \t\n\r]*")
_LITERALS: Final[Mapping[str, object]] = {"true": True, "false": False, "null": None}
_ESCAPES: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class NotAnEventError(Exception):
    """The text is no event."""


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def document(self) -> object:
        value = self.value()
        self.skip_space()
        if self.at < len(self.text):
            self.refuse()
        return value

    def refuse(self) -> NoReturn:
        raise NotAnEventError(f"at character {self.at}")

    def skip_space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def has(self, token: str) -> bool:
        """Whether ``token`` comes next, after any white space; if so, it is consumed."""
        self.skip_space()
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def value(self) -> object:
        if self.has("{"):
            return self.members()
        if self.has("["):
            return self.elements()
        if self.has('"'):
            return self.string()
        for literal, value in _LITERALS.items():
            if self.has(literal):
                return value
        found = _NUMBER.match(self.text, self.at) or self.refuse()
        self.at = found.end()
        return float(found[0]) if found[1] or found[2] else int(found[0])

    def members(self) -> dict[str, object]:
        fields: dict[str, object] = {}
        if self.has("}"):
            return fields
        while True:
            name = self.string() if self.has('"') else self.refuse()
            if name in fields or not self.has(":"):
                self.refuse()
            fields[name] = self.value()
            if self.has("}"):
                return fields
            if not self.has(","):
                self.refuse()

    def elements(self) -> list[object]:
        values: list[object] = []
        if self.has("]"):
            return values
        while True:
            values.append(self.value())
            if self.has("]"):
                return values
            if not self.has(","):
                self.refuse()

    def string(self) -> str:
        units = bytearray()  # UTF-16, as the escapes of RFC 8259 are
        while True:
            character = self.text[self.at : self.at + 1]
            if character == "" or character < " ":
                self.refuse()
            self.at += 1
            if character == '"':
                break
            units += self.escaped() if character == "\\" else character.encode("utf-16-be")
        try:
            return units.decode("utf-16-be")
        except UnicodeDecodeError:
            self.refuse()

    def escaped(self) -> bytes:
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if kind in _ESCAPES and kind:
            return _ESCAPES[kind].encode("utf-16-be")
        digits = self.text[self.at : self.at + 4]
        if kind != "u" or not re.fullmatch("[0-9a-fA-F]{4}", digits):
            self.refuse()
        self.at += 4
        return bytes.fromhex(digits)


_Check = Callable[[Any], bool]
"""Whether a value is of a kind."""


def _integer(least: int, most: int = MAX) -> _Check:
    return lambda value: type(value) is int and least <= value <= most


def _nullable(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _object(**checks: _Check) -> _Check:
    return lambda value: (
        type(value) is dict and all(name in value and check(value[name]) for name, check in checks.items())
    )


def _boolean(value: object) -> bool:
    return type(value) is bool


def _text(value: object) -> bool:
    return type(value) is str and value != ""


def _name(value: object) -> bool:
    return (
        type(value) is str
        and value != ""
        and not any(c < " " or "\x7f" <= c <= "\x9f" or c in "\u2028\u2029" for c in value)
    )


def _short(most: int) -> _Check:
    return lambda value: _name(value) and len(str(value)) <= most


def _offset(least: int) -> _Check:
    return _object(tx_offset=_integer(least), op_offset=_integer(0))


def _shape(value: Any) -> bool:
    if not _object(shape_id=_name, change_count=_integer(0))(value):
        return False
    if not _name(value.get("writer", "log")):
        return False
    last = value.get("last_offset")
    return (value["change_count"] == 0) if last is None else (value["change_count"] > 0 and _offset(0)(last))


_FLUSH: Final = _object(
    v=_integer(1, 1),
    source=_short(200),
    type=lambda value: value in ("flushed", "removed"),
    shape_id=_short(200),
    writer=_short(63),
    offset=_offset(0),
)
_FRAGMENT: Final = _object(
    v=_integer(1, 1),
    source=_name,
    xid=_nullable(_integer(0)),
    lsn=_integer(0),
    follows=_offset(-1),
    last_log_offset=_offset(0),
    start=_boolean,
    has_begin=_boolean,
    commit=_nullable(_object(commit_timestamp=_text, end_lsn=_integer(0))),
    shapes=lambda value: type(value) is list and all(map(_shape, value)),
)


def _is_consistent(fragment: dict[str, Any]) -> bool:
    """Whether the keys of a fragment agree with each other."""
    lsn, follows, last = fragment["lsn"], fragment["follows"], fragment["last_log_offset"]
    op = last["op_offset"]
    offsets = [shape["last_offset"] for shape in fragment["shapes"] if shape.get("last_offset") is not None]
    return (
        last["tx_offset"] == lsn
        and (follows["tx_offset"], follows["op_offset"]) < (lsn, op)
        and all(offset["tx_offset"] == lsn and offset["op_offset"] <= op + 1 for offset in offsets)
        and (fragment["xid"] is not None or (fragment["commit"] is not None and not fragment["shapes"]))
        and (not _is_list(op) or _lists_in_order(fragment))
    )


def _is_list(op: int) -> bool:
    return op >> 32 == 1 << 26


def _lists_in_order(fragment: dict[str, Any]) -> bool:
    """Whether each shape of a list part is listed by its CRC, after what the part follows in the list, if anything."""
    follows = fragment["follows"]
    continues = follows["tx_offset"] == fragment["lsn"] and _is_list(follows["op_offset"])
    before = follows["op_offset"] - 2**58 if continues else -1
    crcs = [zlib.crc32(shape["shape_id"].encode()) for shape in fragment["shapes"]]
    return all(before < crc <= fragment["last_log_offset"]["op_offset"] - 2**58 for crc in crcs)


def _row(value: Any) -> bool:
    return value is None or (type(value) is dict and all(v is None or type(v) is str for v in value.values()))


_OPERATIONS: Final = {"insert", "update", "delete", "truncate", "truncate_partition"}


def _item(value: Any) -> bool:
    is_item = _object(
        offset=_offset(0),
        operation=lambda name: type(name) is str and name in _OPERATIONS,
        key=_nullable(_text),
    )(value)
    has_key = is_item and (value["operation"] != "truncate_partition" or value["key"] is not None)
    return has_key and all(_row(value.get(name)) for name in ("value", "old_value"))


_SHAPE_CHANGES: Final = _object(
    v=_integer(1, 1),
    source=_name,
    shape_id=_name,
    xid=_integer(0),
    follows=_offset(-1),
    last_log_offset=_offset(0),
    start=_boolean,
    has_begin=_boolean,
    commit=_nullable(_object(commit_timestamp=_text, end_lsn=_integer(0))),
    items=lambda value: type(value) is list and all(map(_item, value)),
)


def _is_linked(event: dict[str, Any]) -> bool:
    """Whether what the event follows is below its own end."""
    follows, last = event["follows"], event["last_log_offset"]
    return (follows["tx_offset"], follows["op_offset"]) < (last["tx_offset"], last["op_offset"])


def _has_incarnation(event: dict[str, Any]) -> bool:
    return _integer(1)(event.get("incarnation", 1)) and _nullable(_text)(event.get("schema"))


_EVENT: Final[Mapping[str, _Check]] = {
    "fragments": lambda event: _FRAGMENT(event) and _is_consistent(event),
    "flushes": _FLUSH,
    "shape_changes": lambda event: _SHAPE_CHANGES(event) and _has_incarnation(event) and _is_linked(event),
}


def parse_json(data: bytes) -> Any:
    """The value in ``data``, which is JSON without what RFC 8259 leaves open; raises ``NotAnEventError``."""
    try:
        return _Parser(data.decode()).document()
    except UnicodeDecodeError as error:
        raise NotAnEventError("not UTF-8") from error


def parse_event(stream: str, data: bytes) -> dict[str, Any]:
    """The event of ``stream`` in ``data``, with all its keys; raises ``NotAnEventError``."""
    event = parse_json(data)
    if not _EVENT[stream](event):
        raise NotAnEventError("not the keys of an event")
    found: dict[str, Any] = event
    return found
