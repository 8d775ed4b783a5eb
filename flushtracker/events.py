"""The JSON events of version 1 that travel between capture, writers and tracker: one object each, read and written.

Reading is strict: what is missing, of another type or contradicts itself is a :class:`DecodeError` that says so. Keys
that version 1 does not know are ignored. Numbers are at most 2**63 − 1, since a Spark ``bigint`` holds them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from flushtracker.changes import Commit, LogItem, Operation, Row
from flushtracker.errors import DecodeError
from flushtracker.log_offset import LogOffset

VERSION: Final = 1
MAX_BIGINT: Final = 2**63 - 1

_OPERATIONS: Final[dict[str, Operation]] = {
    "insert": "insert",
    "update": "update",
    "delete": "delete",
    "truncate": "truncate",
}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FragmentShape:
    """A shape's part of a fragment; ``last_offset`` is ``None`` where the fragment has nothing for it."""

    shape_id: str
    last_offset: LogOffset | None
    change_count: int


@dataclass(frozen=True, slots=True)
class FragmentEvent:
    """A fragment's metadata, one link of its source's chain. ``xid`` is ``None`` for a keepalive."""

    source: str
    xid: int | None
    lsn: int
    follows: LogOffset
    last_log_offset: LogOffset
    start: bool
    has_begin: bool
    commit: Commit | None
    shapes: tuple[FragmentShape, ...] = ()

    def to_json(self) -> str:
        shapes = [
            {
                "shape_id": shape.shape_id,
                "last_offset": None if shape.last_offset is None else _offset_json(shape.last_offset),
                "change_count": shape.change_count,
            }
            for shape in self.shapes
        ]
        return _dump(
            self.source,
            xid=self.xid,
            lsn=self.lsn,
            follows=_offset_json(self.follows),
            last_log_offset=_offset_json(self.last_log_offset),
            start=self.start,
            has_begin=self.has_begin,
            commit=_commit_json(self.commit),
            shapes=shapes,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> "FragmentEvent":
        """Read one event; raises ``DecodeError``."""
        fields = _load(text, "fragment")
        lsn = _integer(fields, "lsn", 0)
        event = cls(
            source=_text(fields, "source"),
            xid=None if _get(fields, "xid") is None else _integer(fields, "xid", 0),
            lsn=lsn,
            follows=_offset(fields, "follows", least_tx_offset=-1),
            last_log_offset=_offset(fields, "last_log_offset"),
            start=_typed(fields, "start", bool),
            has_begin=_typed(fields, "has_begin", bool),
            commit=_commit(fields),
            shapes=tuple(_fragment_shape(shape) for shape in _objects(fields, "shapes")),
        )
        event._check()
        return event

    def _check(self) -> None:
        """Refuse what contradicts itself."""
        if self.last_log_offset.tx_offset != self.lsn:
            raise DecodeError(f"last_log_offset {self.last_log_offset} is not of the transaction at lsn {self.lsn}")
        if self.follows >= self.last_log_offset:
            raise DecodeError(f"follows {self.follows} is not below last_log_offset {self.last_log_offset}")
        if self.xid is None and (self.shapes or self.commit is None):
            raise DecodeError("a keepalive (xid null) has shapes or no commit")
        limit = LogOffset(self.lsn, min(self.last_log_offset.op_offset + 1, MAX_BIGINT))
        for shape in self.shapes:
            last_offset = shape.last_offset
            if last_offset is not None and not LogOffset(self.lsn, 0) <= last_offset <= limit:
                raise DecodeError(f"last_offset {last_offset} of shape {shape.shape_id!r} is outside the fragment")


@dataclass(frozen=True, slots=True)
class FlushNotification:
    """``flushed``: all sent up to and including ``offset`` is durable; ``removed``: nothing is sent after it."""

    source: str
    type: str
    shape_id: str
    offset: LogOffset

    def to_json(self) -> str:
        return _dump(self.source, type=self.type, shape_id=self.shape_id, offset=_offset_json(self.offset))

    @classmethod
    def from_json(cls, text: str | bytes) -> "FlushNotification":
        """Read one event; raises ``DecodeError``."""
        fields = _load(text, "flush notification")
        kind = _typed(fields, "type", str)
        if kind not in {"flushed", "removed"}:
            raise DecodeError(f"type is {kind!r:.40}, expected 'flushed' or 'removed'")
        return cls(_text(fields, "source"), kind, _text(fields, "shape_id"), _offset(fields, "offset"))


@dataclass(frozen=True, slots=True)
class ShapeChangesEvent:
    """What one fragment brings to one shape; ``has_begin`` on the first that the shape gets of the transaction."""

    source: str
    shape_id: str
    xid: int
    last_log_offset: LogOffset
    has_begin: bool
    commit: Commit | None
    items: tuple[LogItem, ...] = ()

    def to_json(self) -> str:
        return _dump(
            self.source,
            shape_id=self.shape_id,
            xid=self.xid,
            last_log_offset=_offset_json(self.last_log_offset),
            has_begin=self.has_begin,
            commit=_commit_json(self.commit),
            items=[_item_json(item) for item in self.items],
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> "ShapeChangesEvent":
        """Read one event; raises ``DecodeError``."""
        fields = _load(text, "shape changes")
        return cls(
            source=_text(fields, "source"),
            shape_id=_text(fields, "shape_id"),
            xid=_integer(fields, "xid", 0),
            last_log_offset=_offset(fields, "last_log_offset"),
            has_begin=_typed(fields, "has_begin", bool),
            commit=_commit(fields),
            items=tuple(_item(item) for item in _objects(fields, "items")),
        )


def _dump(source: str, **fields: object) -> str:
    return json.dumps({"v": VERSION, "source": source, **fields}, separators=(",", ":"), ensure_ascii=False)


def _load(text: str | bytes, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{what} is not JSON: {_reason(error)}") from error
    if not isinstance(fields, dict):
        raise DecodeError(f"{what} is a JSON {type(fields).__name__}, expected an object")
    version = _get(fields, "v")
    if type(version) is not int or version != VERSION:
        raise DecodeError(f"{what} has v {version!r:.40}, this program reads v {VERSION}")
    return fields


def _reason(error: Exception) -> str:
    """Say where the text breaks, never what it holds."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return type(error).__name__


def _get(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise DecodeError(f"{name} is missing")
    return fields[name]


def _typed(fields: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    value = _get(fields, name)
    if type(value) is not kind:
        raise DecodeError(f"{name} is a {type(value).__name__}, expected a {kind.__name__}")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = _typed(fields, name, str)
    if not value:
        raise DecodeError(f"{name} is empty")
    return value


def _integer(fields: Mapping[str, Any], name: str, least: int) -> int:
    value = _typed(fields, name, int)
    if not least <= value <= MAX_BIGINT:
        raise DecodeError(f"{name} is {value}, expected {least} to {MAX_BIGINT}")
    return value


def _objects(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    values = _typed(fields, name, list)
    if not all(type(value) is dict for value in values):
        raise DecodeError(f"{name} holds something that is not an object")
    return values


def _offset(fields: Mapping[str, Any], name: str, least_tx_offset: int = 0) -> LogOffset:
    value = _typed(fields, name, dict)
    try:
        return LogOffset(_integer(value, "tx_offset", least_tx_offset), _integer(value, "op_offset", 0))
    except DecodeError as error:
        raise DecodeError(f"{name}: {error}") from error


def _offset_json(offset: LogOffset) -> dict[str, int]:
    return {"tx_offset": offset.tx_offset, "op_offset": offset.op_offset}


def _commit(fields: Mapping[str, Any]) -> Commit | None:
    if _get(fields, "commit") is None:
        return None
    value = _typed(fields, "commit", dict)
    return Commit(_text(value, "commit_timestamp"), _integer(value, "end_lsn", 0))


def _commit_json(commit: Commit | None) -> dict[str, object] | None:
    return None if commit is None else {"commit_timestamp": commit.commit_timestamp, "end_lsn": commit.end_lsn}


def _fragment_shape(fields: dict[str, Any]) -> FragmentShape:
    # Spark cannot tell an absent last_offset from null, so neither does this; the change count tells both.
    last_offset = None if fields.get("last_offset") is None else _offset(fields, "last_offset")
    shape = FragmentShape(_text(fields, "shape_id"), last_offset, _integer(fields, "change_count", 0))
    if (shape.last_offset is None) != (shape.change_count == 0):
        raise DecodeError(
            f"shape {shape.shape_id!r} has change_count {shape.change_count} and last_offset {last_offset}"
        )
    return shape


def _item(fields: dict[str, Any]) -> LogItem:
    operation = _typed(fields, "operation", str)
    if operation not in _OPERATIONS:
        raise DecodeError(f"operation is {operation!r:.40}, expected insert, update, delete or truncate")
    key = None if _get(fields, "key") is None else _text(fields, "key")
    return LogItem(
        _offset(fields, "offset"), _OPERATIONS[operation], key, _row(fields, "value"), _row(fields, "old_value")
    )


def _row(fields: Mapping[str, Any], name: str) -> Row | None:
    if fields.get(name) is None:
        return None
    row = _typed(fields, name, dict)
    if not all(value is None or type(value) is str for value in row.values()):
        raise DecodeError(f"{name} holds something that is neither text nor null")
    return row


def _item_json(item: LogItem) -> dict[str, object]:
    fields: dict[str, object] = {"offset": _offset_json(item.offset), "operation": item.operation, "key": item.key}
    if item.value is not None:
        fields["value"] = item.value
    if item.old_value is not None:
        fields["old_value"] = item.old_value
    return fields
