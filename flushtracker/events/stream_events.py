"""The JSON events between capture, writers and tracker: one object per event, parsed and serialized here.

Parsing is strict: a missing key, a wrong type or a contradiction between fields raises a :class:`DecodeError` that
names the field. Unknown keys are ignored.
"""

from collections.abc import Mapping
from typing import Any, Final

from flushtracker.errors import DecodeError
from flushtracker.events.strict_json import (
    MAX_BIGINT,
    dump_event,
    get_field,
    incarnation_field,
    incarnation_json,
    integer_field,
    load_event,
    name_field,
    objects_field,
    offset_field,
    offset_json,
    text_field,
    typed_field,
    writer_field,
    writer_json,
)
from flushtracker.wal.changes import Commit, LogItem, Operation, Row
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from flushtracker.wal.shape_list import lists_in_order
from flushtracker.wal.value import value

_OPERATIONS: Final[dict[str, Operation]] = {
    "insert": "insert",
    "update": "update",
    "delete": "delete",
    "truncate": "truncate",
    "truncate_partition": "truncate_partition",
}


@value(frozen=True, slots=True)
class FragmentShape:
    """A shape's part of a fragment; ``last_offset`` is ``None`` if the fragment has no change for the shape.

    ``writer``: the only program whose notifications count for the shape.
    """

    shape_id: str
    last_offset: LogOffset | None
    change_count: int
    writer: str = LOG_WRITER


@value(frozen=True, slots=True)
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
                **writer_json(shape.writer),
                "last_offset": None if shape.last_offset is None else offset_json(shape.last_offset),
                "change_count": shape.change_count,
            }
            for shape in self.shapes
        ]
        return dump_event(
            self.source,
            xid=self.xid,
            lsn=self.lsn,
            follows=offset_json(self.follows),
            last_log_offset=offset_json(self.last_log_offset),
            start=self.start,
            has_begin=self.has_begin,
            commit=_commit_json(self.commit),
            shapes=shapes,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> "FragmentEvent":
        """Parse one event; raises ``DecodeError``."""
        fields = load_event(text, "fragment")
        lsn = integer_field(fields, "lsn", 0)
        event = cls(
            source=name_field(fields, "source"),
            xid=None if get_field(fields, "xid") is None else integer_field(fields, "xid", 0),
            lsn=lsn,
            follows=offset_field(fields, "follows", least_tx_offset=-1),
            last_log_offset=offset_field(fields, "last_log_offset"),
            start=typed_field(fields, "start", bool),
            has_begin=typed_field(fields, "has_begin", bool),
            commit=_commit(fields),
            shapes=tuple(_fragment_shape(shape) for shape in objects_field(fields, "shapes")),
        )
        event._check()
        return event

    def _check(self) -> None:
        """Raise ``DecodeError`` if fields contradict each other."""
        if self.last_log_offset.tx_offset != self.lsn:
            raise DecodeError(f"last_log_offset {self.last_log_offset} is not in the transaction at lsn {self.lsn}")
        if self.follows >= self.last_log_offset:
            raise DecodeError(f"follows {self.follows} is not below last_log_offset {self.last_log_offset}")
        if self.xid is None and (self.shapes or self.commit is None):
            raise DecodeError("a keepalive (xid null) must have a commit and no shapes")
        limit = LogOffset(self.lsn, min(self.last_log_offset.op_offset + 1, MAX_BIGINT))
        for shape in self.shapes:
            last_offset = shape.last_offset
            if last_offset is not None and not LogOffset(self.lsn, 0) <= last_offset <= limit:
                raise DecodeError(f"last_offset {last_offset} of shape {shape.shape_id!r} is outside the fragment")
        if not lists_in_order(self.follows, self.last_log_offset, (shape.shape_id for shape in self.shapes)):
            raise DecodeError(
                f"the shapes of list part {self.last_log_offset}, which follows {self.follows}, are not all listed "
                "in between"
            )


@value(frozen=True, slots=True)
class FlushNotification:
    """``flushed``: everything sent up to and including ``offset`` is durable; ``removed``: nothing is sent after it.

    ``writer``: who has flushed, or of a removal the shape's own. A notification counts only if it is the shape's.
    """

    source: str
    type: str
    shape_id: str
    offset: LogOffset
    writer: str

    def to_json(self) -> str:
        return dump_event(
            self.source,
            type=self.type,
            shape_id=self.shape_id,
            writer=self.writer,
            offset=offset_json(self.offset),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> "FlushNotification":
        """Parse one event; raises ``DecodeError``."""
        fields = load_event(text, "flush notification")
        kind = typed_field(fields, "type", str)
        if kind not in {"flushed", "removed"}:
            raise DecodeError(f"type is {kind!r:.40}, expected 'flushed' or 'removed'")
        if "writer" not in fields:
            raise DecodeError(
                "writer is missing: name the program that has flushed, as the shapes file has the shape's writer, "
                f"{LOG_WRITER!r} for flushtracker write"
            )
        return cls(
            *(name_field(fields, "source"), kind, name_field(fields, "shape_id"), offset_field(fields, "offset")),
            writer=name_field(fields, "writer"),
        )


@value(frozen=True, slots=True)
class ShapeChangesEvent:
    """One fragment's changes for one shape; ``has_begin`` is true on the transaction's first event for the shape.

    ``follows``: nothing was sent to the shape between that offset and this event. ``start``: it is the first event of
    the shape's ``incarnation`` since capture connected.
    """

    source: str
    shape_id: str
    xid: int
    follows: LogOffset
    last_log_offset: LogOffset
    start: bool
    has_begin: bool
    commit: Commit | None
    items: tuple[LogItem, ...] = ()
    incarnation: int = 1
    writer: str = LOG_WRITER

    def to_json(self) -> str:
        return dump_event(
            self.source,
            shape_id=self.shape_id,
            **incarnation_json(self.incarnation),
            **writer_json(self.writer),
            xid=self.xid,
            follows=offset_json(self.follows),
            start=self.start,
            last_log_offset=offset_json(self.last_log_offset),
            has_begin=self.has_begin,
            commit=_commit_json(self.commit),
            items=[_item_json(item) for item in self.items],
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> "ShapeChangesEvent":
        """Parse one event; raises ``DecodeError``."""
        fields = load_event(text, "shape changes")
        event = cls(
            source=name_field(fields, "source"),
            shape_id=name_field(fields, "shape_id"),
            xid=integer_field(fields, "xid", 0),
            follows=offset_field(fields, "follows", least_tx_offset=-1),
            last_log_offset=offset_field(fields, "last_log_offset"),
            start=typed_field(fields, "start", bool),
            has_begin=typed_field(fields, "has_begin", bool),
            commit=_commit(fields),
            items=tuple(_item(item) for item in objects_field(fields, "items")),
            incarnation=incarnation_field(fields),
            writer=writer_field(fields),
        )
        if event.follows >= event.last_log_offset:
            raise DecodeError(f"follows {event.follows} is not below last_log_offset {event.last_log_offset}")
        return event


def _commit(fields: Mapping[str, Any]) -> Commit | None:
    if get_field(fields, "commit") is None:
        return None
    value = typed_field(fields, "commit", dict)
    return Commit(text_field(value, "commit_timestamp"), integer_field(value, "end_lsn", 0))


def _commit_json(commit: Commit | None) -> dict[str, object] | None:
    return None if commit is None else {"commit_timestamp": commit.commit_timestamp, "end_lsn": commit.end_lsn}


def _fragment_shape(fields: dict[str, Any]) -> FragmentShape:
    # An absent last_offset means null; change_count must agree.
    last_offset = None if fields.get("last_offset") is None else offset_field(fields, "last_offset")
    shape = FragmentShape(
        *(name_field(fields, "shape_id"), last_offset, integer_field(fields, "change_count", 0)),
        writer=writer_field(fields),
    )
    if (shape.last_offset is None) != (shape.change_count == 0):
        raise DecodeError(
            f"shape {shape.shape_id!r} has change_count {shape.change_count} and last_offset {last_offset}"
        )
    return shape


def _item(fields: dict[str, Any]) -> LogItem:
    operation = typed_field(fields, "operation", str)
    if operation not in _OPERATIONS:
        raise DecodeError(f"operation is {operation!r:.40}, expected one of {', '.join(_OPERATIONS)}")
    key = None if get_field(fields, "key") is None else text_field(fields, "key")
    if operation == "truncate_partition" and key is None:
        raise DecodeError("truncate_partition has no key")
    return LogItem(
        offset_field(fields, "offset"),
        _OPERATIONS[operation],
        key,
        row_field(fields, "value"),
        row_field(fields, "old_value"),
    )


def row_field(fields: Mapping[str, Any], name: str) -> Row | None:
    """Columns by name, each a text or null; ``None`` if the field is null or missing."""
    if fields.get(name) is None:
        return None
    row = typed_field(fields, name, dict)
    if not all(value is None or type(value) is str for value in row.values()):
        raise DecodeError(f"{name} has a column that is neither a string nor null")
    return row


def _item_json(item: LogItem) -> dict[str, object]:
    fields: dict[str, object] = {"offset": offset_json(item.offset), "operation": item.operation, "key": item.key}
    if item.value is not None:
        fields["value"] = item.value
    if item.old_value is not None:
        fields["old_value"] = item.old_value
    return fields
