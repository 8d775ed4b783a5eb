"""``SinkRegistry``: the shapes of a sink's writer with their tables, as capture has published them."""

from collections.abc import Mapping
from contextlib import closing
from typing import Final

from flushtracker.errors import ConfigError, DecodeError
from flushtracker.events.registry_events import ShapeEntry, SourceEntry, TableEntry, parse_registry_entry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.sinks.debezium_records import DebeziumRecords
from flushtracker.sinks.job.feed_config import FeedConfig
from flushtracker.wal.source_name import successors

_NO_ENTRY: Final = "has changes, but no entry in the registry"


class SinkRegistry:
    """Reads the registry to its end when asked; capture publishes an entry before anything that needs it."""

    def __init__(self, config: FeedConfig) -> None:
        self._config = config
        self._read_until: dict[int, int] = {}
        self._sources: set[str] = set()
        self._shapes: dict[tuple[str, str], ShapeEntry] = {}
        self._tables: dict[tuple[str, int], TableEntry] = {}
        self._records: dict[tuple[str, str], DebeziumRecords] = {}
        self._retired: Mapping[str, str] = {}
        self._has_news = False
        self._unknown: dict[tuple[str, str], str | None] = {}
        """By shape, the schema of changes with columns that are no longer in the registry."""

    def read(self) -> None:
        """Take what is new; raises ``BrokerError`` and ``DecodeError``."""
        with closing(TopicReader(self._config.kafka)) as reader:
            values, self._read_until = reader.since(self._config.kafka.topics.shapes, self._read_until)
        for value in values:
            match parse_registry_entry(value):
                case SourceEntry(source=source):
                    self._sources.add(source)
                case ShapeEntry() as entry:
                    self._shapes[entry.source, entry.definition.id] = entry
                case TableEntry() as table:
                    self._tables[table.source, table.binding.oid] = table
        if values:
            self._has_news = True
            self._records.clear()
            self._retired = successors(self._sources)

    def take_news(self) -> list[ShapeEntry]:
        """All entries, if something was read since the last call; else none."""
        has_news, self._has_news = self._has_news, False
        return list(self._shapes.values()) if has_news else []

    def may_need(self, source: str, shape_id: str, incarnation: int) -> bool:
        """Whether it is not known that the incarnation has ended; it may be too new to be known at all."""
        found = self._shapes.get((source, shape_id))
        return found is None or found.definition.incarnation < incarnation or not self.has_ended(found)

    def has_ended(self, entry: ShapeEntry) -> bool:
        """Whether it was removed, or its source's slot is captured under another name, so that nothing waits for it."""
        return entry.is_condensed or entry.removed_at is not None or entry.source in self._retired

    def forget(self, source: str, shape_id: str) -> None:
        """Drop what was made of the entry of an ended shape."""
        self._records.pop((source, shape_id), None)
        self._unknown.pop((source, shape_id), None)

    def entry(self, source: str, shape_id: str, incarnation: int) -> ShapeEntry:
        """The entry of this incarnation or a later one; raises ``DecodeError`` if there is none."""
        found = self._shapes.get((source, shape_id))
        if found is None or found.definition.incarnation < incarnation:
            self.read()
            found = self._shapes.get((source, shape_id))
        if found is None:
            raise DecodeError(f"shape {shape_id!r} of source {source} {_NO_ENTRY}")
        return found

    def records(self, event: ShapeChangesEvent) -> DebeziumRecords:
        """The records of the event's shape; raises ``ConfigError`` and ``DecodeError``."""
        found = self.records_of(event.source, event.shape_id)
        # An added column is in the registry before it is in a change. One that is not has been dropped since.
        shape = event.source, event.shape_id
        is_read = shape in self._unknown and self._unknown[shape] == event.schema
        if not is_read and not all(found.knows(item) for item in event.items):
            self.read()
            self._unknown[shape] = event.schema
            found = self.records_of(event.source, event.shape_id)
        return found

    def records_of(self, source: str, shape_id: str) -> DebeziumRecords:
        """Likewise, of a shape that has an entry and a topic."""
        key = source, shape_id
        if key not in self._records:
            entry = self._shapes[key]
            table = self._tables.get((source, entry.table_oid))
            if table is None:
                raise ConfigError(f"shape {shape_id!r} of source {source} has no table in the registry")
            self._records[key] = DebeziumRecords(
                entry.definition,
                table.binding,
                name=self._config.name,
                database=self._config.database,
                has_schemas=self._config.topics[shape_id].has_schemas,
                most_bytes=self._config.kafka.max_event_bytes,
            )
        return self._records[key]
