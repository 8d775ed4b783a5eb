"""``PriorState``: what the topics hold of a source, whichever process published it.

Read it only while holding the slot: until then another process may change it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Protocol

from flushtracker.capture.history_check import TransactionIdentity
from flushtracker.capture.shape_registry import SourceEntries, trimmed
from flushtracker.events.registry_events import (
    PartitionEntry,
    RegistryEntry,
    ShapeEntry,
    SourceEntry,
    TableEntry,
    parse_registry_entry,
)
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.kafka.kafka_config import Topics
from flushtracker.kafka.records import fragment_key, record_of
from flushtracker.wal.source_name import SourceName


class Reader(Protocol):
    """The part of ``TopicReader`` that is used here."""

    def values(self, topic: str) -> Iterator[bytes]: ...

    def tails(self, topic: str, key: str) -> Iterator[list[bytes]]: ...


@dataclass(frozen=True, slots=True)
class PriorState:
    """The registry's entries of ``source``, and the last transaction in the topic of fragments."""

    source: SourceName
    entries: SourceEntries
    last_transaction: TransactionIdentity | None


def read_prior_state(
    reader: Reader, topics: Topics, base: SourceName, *, new_epoch: bool = False, least_epoch: int = 0
) -> PriorState:
    """Read the state of the last epoch of ``base``, or of ``least_epoch`` if that is later.

    ``new_epoch`` starts the epoch after the last one.

    Raises:
        BrokerError: a topic cannot be read.
        DecodeError: it has an entry that cannot be parsed.
    """
    entries = last_entries(reader.values(topics.shapes))
    last = base.last_epoch(entry.source for entry in entries if isinstance(entry, SourceEntry))
    source = replace(base, epoch=max((last or 0) + new_epoch, least_epoch))
    name = str(source)
    own = [entry for entry in entries if entry.source == name]
    found = SourceEntries(
        next((entry for entry in own if isinstance(entry, SourceEntry)), None),
        tuple(entry for entry in own if isinstance(entry, ShapeEntry)),
        tuple(entry for entry in own if isinstance(entry, TableEntry)),
        tuple(entry for entry in own if isinstance(entry, PartitionEntry)),
    )
    last_transaction = None if found.source is None else _last_transaction(reader, topics.fragments, name)
    return PriorState(source, found, last_transaction)


def last_entries(values: Iterable[bytes]) -> list[RegistryEntry]:
    """The last entry of each key, as after compaction, and trimmed."""
    entries: dict[str, RegistryEntry] = {}
    for value in values:
        entry = parse_registry_entry(value)
        if isinstance(entry, ShapeEntry):
            # At once: there may be very many.
            entry = trimmed(entry)
        entries[record_of(entry).key] = entry
    return list(entries.values())


def _last_transaction(reader: Reader, topic: str, source: str) -> TransactionIdentity | None:
    for values in reader.tails(topic, fragment_key(source)):
        events = [FragmentEvent.from_json(value) for value in values]
        transactions = [
            TransactionIdentity(event.lsn, event.xid, event.commit.commit_timestamp)
            for event in events
            if event.xid is not None and event.commit is not None
        ]
        if transactions:
            return max(transactions, key=attrgetter("lsn"))
    return None
