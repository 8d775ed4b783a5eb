"""The events between capture, writers and tracker, as the programs use them.

:mod:`flushtracker.events.structs` defines their JSON. A missing key, a wrong type or a contradiction between fields is
a :class:`DecodeError` that names the field.
"""

from collections.abc import Iterator
from typing import Final, Literal

from flushtracker.errors import DecodeError
from flushtracker.events import structs
from flushtracker.events.event_json import EventReader, dump_json, require_names
from flushtracker.events.structs import MAX_BIGINT, VERSION
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from flushtracker.wal.shape_list import is_list, lists_in_order
from flushtracker.wal.value import value

_FRAGMENTS: Final = EventReader("fragment", structs.Fragment)
_FLUSHES: Final = EventReader("flush notification", structs.Flush)
_FLUSH_KEYS: Final = EventReader("key of a flush notification", structs.FlushKey)
_CHANGES: Final = EventReader("shape changes", structs.ShapeChanges)


@value(frozen=True, slots=True)
class FragmentShape:
    """A shape's part of a fragment; ``last_offset`` is ``None`` if the fragment has no change for the shape.

    Only notifications of its ``writer`` count for the shape.
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
            structs.FragmentShape(
                shape_id=shape.shape_id,
                writer=written_writer(shape.writer),
                last_offset=None if shape.last_offset is None else structs.Offset(*shape.last_offset),
                change_count=shape.change_count,
            )
            for shape in self.shapes
        ]
        event = structs.Fragment(
            v=VERSION,
            source=self.source,
            xid=self.xid,
            lsn=self.lsn,
            follows=structs.Link(*self.follows),
            last_log_offset=structs.Offset(*self.last_log_offset),
            start=self.start,
            has_begin=self.has_begin,
            commit=_commit_json(self.commit),
            shapes=shapes,
        )
        return dump_json(event)

    @classmethod
    def from_json(cls, text: str | bytes) -> "FragmentEvent":
        """Parse one event; raises ``DecodeError``."""
        event = read_fragment(text)
        return cls(
            source=event.source,
            xid=event.xid,
            lsn=event.lsn,
            follows=offset_of(event.follows),
            last_log_offset=offset_of(event.last_log_offset),
            start=event.start,
            has_begin=event.has_begin,
            commit=_commit(event.commit),
            shapes=tuple(
                FragmentShape(
                    shape.shape_id,
                    offset_of(shape.last_offset) if isinstance(shape.last_offset, structs.Offset) else None,
                    shape.change_count,
                    shape.writer,
                )
                for shape in event.shapes
            ),
        )


def read_fragment(text: str | bytes) -> structs.Fragment:
    """Read a fragment; raises ``DecodeError``, also if fields contradict each other."""
    event = _FRAGMENTS.read(text)
    last, shapes = event.last_log_offset, event.shapes
    if last.tx_offset != event.lsn:
        raise DecodeError(f"last_log_offset {offset_of(last)} is not in the transaction at lsn {event.lsn}")
    _check_order(event)
    if event.xid is None and (shapes or event.commit is None):
        raise DecodeError("a keepalive (xid null) must have a commit and no shapes")
    require_names(text, _names(event))
    if shapes:
        _check_shapes(event)
    return event


def _names(event: structs.Fragment) -> Iterator[str]:
    yield event.source
    for shape in event.shapes:
        yield shape.shape_id
        yield shape.writer


def _check_shapes(event: structs.Fragment) -> None:
    lsn, last_op = event.lsn, event.last_log_offset.op_offset
    # A split update is written one past the boundary.
    limit = min(last_op + 1, MAX_BIGINT)
    for shape in event.shapes:
        offset = shape.last_offset
        if not isinstance(offset, structs.Offset):
            if shape.change_count:
                raise DecodeError(f"shape {shape.shape_id!r} has change_count {shape.change_count} and no last_offset")
        elif shape.change_count == 0:
            raise DecodeError(f"shape {shape.shape_id!r} has change_count 0 and last_offset {offset_of(offset)}")
        elif offset.tx_offset != lsn or offset.op_offset > limit:
            raise DecodeError(f"last_offset {offset_of(offset)} of shape {shape.shape_id!r} is outside the fragment")
    if not is_list(last_op):
        return
    follows, last = offset_of(event.follows), offset_of(event.last_log_offset)
    if not lists_in_order(follows, last, (shape.shape_id for shape in event.shapes)):
        raise DecodeError(f"the shapes of list part {last}, which follows {follows}, are not all listed in between")


@value(frozen=True, slots=True)
class FlushNotification:
    """``flushed``: everything sent up to and including ``offset`` is durable; ``removed``: nothing is sent after it.

    ``writer`` is the one that flushed; in a removal, the shape's. Only notifications of the shape's writer count.
    """

    source: str
    type: str
    shape_id: str
    offset: LogOffset
    writer: str

    def to_json(self) -> str:
        kind: Literal["flushed", "removed"] = "removed" if self.type == "removed" else "flushed"
        offset = structs.Offset(*self.offset)
        return dump_json(structs.Flush(VERSION, self.source, kind, self.shape_id, self.writer, offset))

    @classmethod
    def from_json(cls, text: str | bytes) -> "FlushNotification":
        """Parse one event; raises ``DecodeError``."""
        event = read_flush(text)
        return cls(event.source, event.type, event.shape_id, offset_of(event.offset), event.writer)


def read_flush(text: str | bytes) -> structs.Flush:
    """Read a flush notification; raises ``DecodeError``."""
    try:
        event = _FLUSHES.read(text)
    except DecodeError as error:
        if not str(error).endswith("missing required field `writer`"):
            raise
        remedy = "name the program that has flushed, as the shapes file has the shape's writer"
        raise DecodeError(f"{error}: {remedy}, {LOG_WRITER!r} for flushtracker write") from error
    require_names(text, (event.source, event.shape_id, event.writer))
    return event


def read_flush_key(key: str) -> tuple[str, str]:
    """The source and the shape in the key of a flush notification; raises ``DecodeError``.

    >>> read_flush_key('["7301/1/shapes","users","removed","log"]')
    ('7301/1/shapes', 'users')
    """
    found = _FLUSH_KEYS.read(key)
    require_names(key, (found.source, found.shape_id, found.writer))
    return found.source, found.shape_id


@value(frozen=True, slots=True)
class ShapeChangesEvent:
    """One fragment's changes for one shape; ``has_begin`` is true on the transaction's first event for the shape.

    Nothing was sent to the shape between ``follows`` and this event. ``start`` marks the first event of the shape's
    ``incarnation`` since capture connected. ``schema`` is a digest of the shape's columns and types
    (:func:`flushtracker.shapes.shape_schema.shape_schema`).
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
    schema: str | None = None

    def to_json(self) -> str:
        event = structs.ShapeChanges(
            v=VERSION,
            source=self.source,
            shape_id=self.shape_id,
            incarnation=self.incarnation,
            writer=written_writer(self.writer),
            schema=self.schema,
            xid=self.xid,
            follows=structs.Link(*self.follows),
            start=self.start,
            last_log_offset=structs.Offset(*self.last_log_offset),
            has_begin=self.has_begin,
            commit=_commit_json(self.commit),
            items=[
                structs.Item(structs.Offset(*item.offset), item.operation, item.key, item.value, item.old_value)
                for item in self.items
            ],
        )
        return dump_json(event)

    @classmethod
    def from_json(cls, text: str | bytes) -> "ShapeChangesEvent":
        """Parse one event; raises ``DecodeError``."""
        event = read_shape_changes(text)
        return cls(
            source=event.source,
            shape_id=event.shape_id,
            xid=event.xid,
            follows=offset_of(event.follows),
            last_log_offset=offset_of(event.last_log_offset),
            start=event.start,
            has_begin=event.has_begin,
            commit=_commit(event.commit),
            items=tuple(
                LogItem(offset_of(item.offset), item.operation, item.key, item.value, item.old_value)
                for item in event.items
            ),
            incarnation=event.incarnation,
            writer=event.writer,
            schema=event.schema,
        )


def read_shape_changes(text: str | bytes) -> structs.ShapeChanges:
    """Read shape changes; raises ``DecodeError``, also if fields contradict each other."""
    event = _CHANGES.read(text)
    _check_order(event)
    require_names(text, (event.source, event.shape_id, event.writer))
    for item in event.items:
        if item.key is None and item.operation == "truncate_partition":
            raise DecodeError("truncate_partition has no key")
    return event


def _check_order(event: structs.Fragment | structs.ShapeChanges) -> None:
    follows, last = event.follows, event.last_log_offset
    if (follows.tx_offset, follows.op_offset) >= (last.tx_offset, last.op_offset):
        raise DecodeError(f"follows {offset_of(follows)} is not below last_log_offset {offset_of(last)}")


def offset_of(offset: structs.Offset | structs.Link) -> LogOffset:
    return LogOffset(offset.tx_offset, offset.op_offset)


def written_writer(writer: str) -> str:
    """The writer for a struct that omits the log's: omitting compares by identity, so return that object."""
    return LOG_WRITER if writer == LOG_WRITER else writer


def _commit(commit: structs.Commit | None) -> Commit | None:
    return None if commit is None else Commit(commit.commit_timestamp, commit.end_lsn)


def _commit_json(commit: Commit | None) -> structs.Commit | None:
    return None if commit is None else structs.Commit(commit.commit_timestamp, commit.end_lsn)
