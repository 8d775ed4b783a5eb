"""Turns events into records: the stream, the key, which determines the partition, and the JSON.

In a compacted topic the key also determines which record replaces which. Compound keys are JSON arrays, so different
keys never have the same text, whatever the names contain.
"""

from typing import NamedTuple, TypeAlias

from flushtracker.config.streams import FLUSHES, FRAGMENTS, SHAPE_CHANGES, SHAPES, SNAPSHOTS
from flushtracker.errors import BrokerError
from flushtracker.events.event_json import dump_json
from flushtracker.events.event_size import halves
from flushtracker.events.registry_events import PartitionEntry, RegistryEntry, ShapeEntry, SourceEntry, TableEntry
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent

Event: TypeAlias = FragmentEvent | ShapeChangesEvent | FlushNotification | RegistryEntry | SnapshotEvent


class Record(NamedTuple):
    """An event as published; ``stream`` is one of the roles in ``topic_rules``."""

    stream: str
    key: str
    value: str


def record_of(event: Event) -> Record:
    """The record for an event.

    - A fragment's key is its source: all fragments of a source are in one partition, in order.
    - A flush notification's key has its type and its writer, because in the compacted topic ``removed`` must not
      replace ``flushed``, nor one writer's flush another's.
    - A shape's registry entry, its changes and its snapshots share a key: all changes of a shape are in one partition,
      in order, and so are its snapshots.

    >>> from flushtracker.wal.log_offset import LogOffset
    >>> record_of(FlushNotification("7301/1/shapes", "flushed", "users-eu", LogOffset(100, 4), "log")).key
    '["7301/1/shapes","users-eu","flushed","log"]'
    """
    match event:
        case FragmentEvent():
            return Record(FRAGMENTS, fragment_key(event.source), event.to_json())
        case ShapeChangesEvent():
            return Record(SHAPE_CHANGES, shape_record_key(event.source, event.shape_id), event.to_json())
        case SnapshotEvent():
            return Record(SNAPSHOTS, _compound_key(event.source, event.shape_id), event.to_json())
        case FlushNotification():
            return Record(FLUSHES, _flush_key(event.source, event.shape_id, event.type, event.writer), event.to_json())
        case ShapeEntry() | TableEntry() | PartitionEntry() | SourceEntry():
            return Record(SHAPES, _compound_key(event.source, *_entry_names(event)), event.to_json())


def fitting_records(event: FragmentEvent | ShapeChangesEvent, max_bytes: int) -> tuple[Record, ...]:
    """The event's record, or if its JSON has more than ``max_bytes``, those of its parts in order.

    Raises:
        BrokerError: an event is too large and cannot be split: a bug in capture.
    """
    record = record_of(event)
    # The character count, a cheap bound, is checked first.
    if 4 * len(record.value) <= max_bytes or (size := len(record.value.encode())) <= max_bytes:
        return (record,)
    parts = halves(event) if isinstance(event, ShapeChangesEvent) else None
    if parts is None:
        raise BrokerError(
            f"an event of transaction {event.xid} has {size} bytes, over the limit of {max_bytes} (max_event_bytes, "
            "less the key), and cannot be split"
        )
    return tuple(record for part in parts for record in fitting_records(part, max_bytes))


def _entry_names(entry: RegistryEntry) -> tuple[str, ...]:
    """The part of the key that distinguishes an entry from others of its source; no shape id is empty."""
    match entry:
        case ShapeEntry():
            return (entry.definition.id,)
        case TableEntry():
            return ("", str(entry.binding.oid))
        case PartitionEntry():
            return ("", str(entry.table_oid), str(entry.binding.oid))
        case SourceEntry():
            return ("",)


def fragment_key(source: str) -> str:
    """The key of every fragment of ``source``; readers use it to find them."""
    return source


def shape_record_key(source: str, shape_id: str) -> str:
    """The key of all changes of a shape, and of no other shape's."""
    return _compound_key(source, shape_id)


def shape_keys_prefix(source: str) -> bytes:
    """The prefix of the keys of all shape changes of ``source``, and of no other keys.

    >>> shape_keys_prefix("7/1/s")
    b'["7/1/s",'
    """
    return f"{_compound_key(source)[:-1]},".encode()


def flush_keys(source: str, shape_id: str, writer: str) -> tuple[str, str]:
    """The keys of all flush notifications that count for a shape: those of its writer."""
    return _flush_key(source, shape_id, "flushed", writer), _flush_key(source, shape_id, "removed", writer)


def _flush_key(source: str, shape_id: str, kind: str, writer: str) -> str:
    return _compound_key(source, shape_id, kind, writer)


def _compound_key(*names: str) -> str:
    return dump_json(names)
