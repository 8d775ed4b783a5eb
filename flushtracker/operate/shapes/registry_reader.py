"""``RegistryReader``: reads a slot's shapes from the registry's topic, and waits until capture changes them."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import closing
from dataclasses import replace
from typing import Final

from flushtracker.capture.source.prior_state import last_entries
from flushtracker.events.registry_events import RegistryEntry, ShapeEntry, parse_registry_entry
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_reader import TopicFollower, TopicReader
from flushtracker.status.current_sources import slot_of
from flushtracker.wal.source_name import current_sources

_MAX_TIMEOUT_MS: Final = 10_000
"""Long enough for an interactive command, which the user can repeat."""
_SLICE_S: Final = 0.25


class RegistryReader:
    """The registry at the time of construction; raises ``BrokerError`` if it cannot be read."""

    def __init__(self, kafka: KafkaConfig, slot: str) -> None:
        self._kafka = replace(kafka, retry_timeout_ms=min(kafka.retry_timeout_ms, _MAX_TIMEOUT_MS))
        self._slot = slot
        with closing(TopicReader(self._kafka)) as reader:
            entries = last_entries(reader.values(kafka.topics.shapes))
        self._known = {(entry.source, entry.definition.id): entry for entry in self._of_slot(entries)}
        current = current_sources(slot, {source for source, _ in self._known}).values()
        sources = set(map(str, current))
        self._current = [entry for entry in self._known.values() if entry.source in sources]

    @property
    def live_ids(self) -> tuple[frozenset[str], ...]:
        """The ids of live shapes, one set for each server with a slot of this name."""
        by_source: dict[str, set[str]] = {}
        for entry in self._current:
            if entry.removed_at is None:
                by_source.setdefault(entry.source, set()).add(entry.definition.id)
        return tuple(map(frozenset, by_source.values()))

    def entry(self, shape_id: str) -> ShapeEntry | None:
        """The entry of a shape, live or removed, of the slot's current source."""
        return next((entry for entry in self._current if entry.definition.id == shape_id), None)

    def await_removal(self, shape_id: str, timeout_s: float) -> bool:
        """Wait until capture has removed a live shape; return whether it did in time."""

        def is_removed(entry: ShapeEntry) -> bool:
            known = self._known.get((entry.source, shape_id))
            return entry.removed_at is not None and known is not None and known.removed_at is None

        return not self._await({shape_id}, is_removed, timeout_s)

    def await_addition(self, shape_ids: Set[str], timeout_s: float) -> frozenset[str]:
        """Wait until capture has registered new shapes; return those that it did not register in time."""
        return self._await(shape_ids, lambda entry: (entry.source, entry.definition.id) not in self._known, timeout_s)

    def await_incarnations(self, wanted: Mapping[str, int], timeout_s: float) -> frozenset[str]:
        """Wait until capture has begun these incarnations; return the shapes that it did not begin in time."""
        known = {key: entry.definition.incarnation for key, entry in self._known.items()}

        def has_begun(entry: ShapeEntry) -> bool:
            incarnation, key = entry.definition.incarnation, (entry.source, entry.definition.id)
            return incarnation >= wanted[entry.definition.id] and incarnation > known.get(key, 0)

        return self._await(wanted.keys(), has_begun, timeout_s)

    def _await(
        self, shape_ids: Set[str], has_changed: Callable[[ShapeEntry], bool], timeout_s: float
    ) -> frozenset[str]:
        """Follow the topic until each shape has a changed entry; return the shapes without one."""
        missing, deadline = set(shape_ids), time.monotonic() + timeout_s
        # If JSON does not escape the names, a value that contains none of them need not be parsed.
        names = [shape_id.encode() for shape_id in shape_ids if json.dumps(shape_id) == f'"{shape_id}"']
        with closing(TopicFollower(self._kafka, self._kafka.topics.shapes, only_committed=False)) as follower:
            while missing and time.monotonic() < deadline:
                values = follower.values(_SLICE_S)
                if len(names) == len(shape_ids):
                    values = [value for value in values if any(name in value for name in names)]
                entries = self._of_slot(map(parse_registry_entry, values))
                mine = [entry for entry in entries if entry.definition.id in shape_ids]
                missing -= {entry.definition.id for entry in mine if has_changed(entry)}
        return frozenset(missing)

    def _of_slot(self, entries: Iterable[RegistryEntry]) -> list[ShapeEntry]:
        return [entry for entry in entries if isinstance(entry, ShapeEntry) and slot_of(entry.source) == self._slot]
