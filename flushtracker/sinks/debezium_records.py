"""The records that Debezium's PostgreSQL connector would send for a shape's rows: key, envelope, tombstone.

One record for each item of the shape: ``c`` for an insert, ``u`` for an update, ``d`` and a tombstone for a delete, and
``t`` for a truncate, which has no key; ``r`` for a row of a snapshot. What crosses the shape's ``where`` is an insert
or a delete, and an update that changes the key a delete and an insert, as everywhere in a shape's log. All follows from
the item alone, which is why the shape needs ``replica: full``.

The columns of an item are in the order of the table. One that is missing from an update was not sent, because it is
large and has not changed: Debezium's placeholder. One that is missing from a delete is not in the replica identity:
null. So is one that is missing from an update's old values if these have the key; otherwise it has not changed
(:mod:`flushtracker.shapes.log_items`).
"""

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.json import encode

from flushtracker.errors import ConfigError, DecodeError
from flushtracker.events.snapshot_events import SnapshotRow
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.events.topic_rules import FRAME_BYTES, MAX_EVENT_BYTES
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape_schema import shape_columns, shape_key
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.sinks.debezium_schemas import envelope_schema, key_schema, with_schema
from flushtracker.sinks.debezium_types import connect_type
from flushtracker.sinks.debezium_values import json_value
from flushtracker.wal.changes import LogItem, Row
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.value import value

_Image: TypeAlias = dict[str, Any] | None

OFFSET_HEADER: Final = "flushtracker.offset"
"""The header with the offset of a change, as JSON."""

_ISO_ZONE: Final = "Z"
_OPERATIONS: Final = {"insert": "c", "update": "u", "delete": "d"}


class _Source(Struct, frozen=True, gc=False):
    """The envelope's ``source``; times are those of the commit, in three units."""

    version: str
    connector: str
    name: str
    ts_ms: int | None
    snapshot: str
    db: str
    sequence: str | None
    ts_us: int | None
    ts_ns: int | None
    schema: str
    table: str
    txId: int | None  # noqa: N815
    lsn: int
    xmin: None = None
    origin: None = None
    origin_lsn: None = None


class _Envelope(Struct, frozen=True, gc=False):
    """The value of a record; times are when it is made."""

    before: _Image
    after: _Image
    source: _Source
    transaction: None
    op: str
    ts_ms: int
    ts_us: int
    ts_ns: int


@value(frozen=True, slots=True)
class SinkRecord:
    """A record without its topic. ``key`` is ``None`` for a truncate, ``value`` for a tombstone."""

    key: bytes | None
    value: bytes | None
    offset: LogOffset | None

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        if self.offset is None:
            return []
        tx_offset, op_offset = self.offset
        return [(OFFSET_HEADER, encode({"tx_offset": tx_offset, "op_offset": op_offset}))]


class DebeziumRecords:
    """The records of one shape; ``name`` is ``source.name``, Debezium's ``topic.prefix``, and ``database`` its ``db``.

    ``has_schemas``: a schema is before each key and value, as Connect's JSON converter writes them. No record has more
    than ``most_bytes``: one may be longer than its event, which has no schema, and nothing twice.

    Create another one when the table's description in the registry has changed.

    Raises:
        ConfigError: the shape is not one that can be written so.
    """

    def __init__(
        self,
        definition: ShapeDefinition,
        table: TableBinding,
        *,
        name: str,
        database: str,
        has_schemas: bool = False,
        most_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        if definition.replica != "full":
            raise ConfigError(f"shape {definition.id!r} has replica: default, but a Kafka sink needs replica: full")
        if definition.inner_tables:
            raise ConfigError(f"shape {definition.id!r} has subqueries, which a Kafka sink cannot have")
        types = {each.oid: each for each in table.types}
        columns = {
            column.name: connect_type(column.type_oid, column.type_modifier, types, is_flat=has_schemas)
            for column in shape_columns(definition, table).values()
        }
        self._key = shape_key(definition, table)
        self._converters = {name: column.convert for name, column in columns.items()}
        self._unavailable = {name: column.unavailable for name, column in columns.items()}
        self._name, self._database, self._table = name, database, definition.table
        prefix = ".".join((name, *definition.table))
        self._most_bytes = most_bytes - FRAME_BYTES
        self._key_schema = key_schema(prefix, self._key, columns) if has_schemas else None
        self._envelope_schema = envelope_schema(prefix, self._key, columns) if has_schemas else None

    def of_changes(self, event: ShapeChangesEvent, item: LogItem, now_ms: int) -> Iterator[SinkRecord]:
        """The records of one item of the event; ``now_ms`` is when they are made.

        Raises:
            DecodeError: a value is not of its column's type, or a record is too large.
        """
        committed = None if event.commit is None else _micros(event.commit.commit_timestamp)
        tx_offset, op_offset = item.offset
        source = self._source(committed, "false", event.xid, tx_offset, f'["{tx_offset}","{op_offset}"]')
        if item.operation not in _OPERATIONS:
            yield self._record(None, self._value(None, None, source, "t", now_ms), item.offset)
            return
        row = item.value or {}
        key = self._key_of(row)
        before, after = self._images(item, row)
        yield self._record(key, self._value(before, after, source, _OPERATIONS[item.operation], now_ms), item.offset)
        if item.operation == "delete":
            yield SinkRecord(key, None, item.offset)

    def of_snapshot(self, row: SnapshotRow, lsn: int, now_ms: int) -> SinkRecord:
        """The record of a row of a snapshot, which is as of ``lsn``; raises as :meth:`of_changes`."""
        source = self._source(now_ms * 1_000, "true", None, lsn, None)
        text = self._value(None, self._sent(row.value), source, "r", now_ms)
        return self._record(self._key_of(row.value), text, None)

    def knows(self, item: LogItem) -> bool:
        """Whether all columns of the item are known; another one was added to the table, or taken out of it."""
        return not (item.value or {}).keys() - self._converters.keys()

    def _record(self, key: bytes | None, value: bytes, offset: LogOffset | None) -> SinkRecord:
        if (size := len(key or b"") + len(value)) > self._most_bytes:
            where = "of the snapshot" if offset is None else f"at {offset}"
            raise DecodeError(
                f"the record of the row {where} has {size} bytes, over the limit of {self._most_bytes} "
                "(max_event_bytes, less its header); the shape needs fewer columns, or a where that excludes such rows"
            )
        return SinkRecord(key, value, offset)

    def _images(self, item: LogItem, row: Row) -> tuple[_Image, _Image]:
        if item.operation == "delete":
            return self._known(row), None
        after, old = self._sent(row), item.old_value
        if old is None:
            return None, after
        if not old.keys().isdisjoint(self._key):
            return self._known(old), after
        changed = {name: json_value(self._converters[name], old[name], name) for name in old if name in after}
        return {**after, **changed}, after

    def _sent(self, row: Row) -> dict[str, Any]:
        return {
            name: json_value(convert, row[name], name) if name in row else self._unavailable[name]
            for name, convert in self._converters.items()
        }

    def _known(self, row: Row) -> dict[str, Any]:
        return {name: json_value(convert, row.get(name), name) for name, convert in self._converters.items()}

    def _key_of(self, row: Row) -> bytes:
        key = {name: json_value(self._converters[name], row.get(name), name) for name in self._key}
        return with_schema(self._key_schema, key)

    def _source(
        self, committed_us: int | None, snapshot: str, xid: int | None, lsn: int, sequence: str | None
    ) -> _Source:
        ms, ns = (None, None) if committed_us is None else (committed_us // 1_000, committed_us * 1_000)
        names = self._name, ms, snapshot, self._database, sequence, committed_us, ns, *self._table
        return _Source("flushtracker", "postgresql", *names, xid, lsn)

    def _value(self, before: _Image, after: _Image, source: _Source, op: str, now_ms: int) -> bytes:
        times = now_ms, now_ms * 1_000, now_ms * 1_000_000
        return with_schema(self._envelope_schema, _Envelope(before, after, source, None, op, *times))


@lru_cache(maxsize=1)
def _micros(timestamp: str) -> int:
    """Microseconds since 1970 of a time in the events' form."""
    time = datetime.fromisoformat(timestamp.replace(_ISO_ZONE, "+00:00"))
    since = time - datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
