"""``PriorState``: what the topics hold of a source, whichever process published it.

Read it only while holding the slot: until then another process may change it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from flushtracker.events.stream_events import FragmentEvent, ShapeChangesEvent
from flushtracker.kafka.kafka_config import Topics
from flushtracker.kafka.records import fragment_key, record_of, shape_keys_prefix
from flushtracker.wal.source_name import SourceName, current_sources


class Reader(Protocol):
    """The part of ``TopicReader`` that is used here."""

    def values(self, topic: str) -> Iterator[bytes]: ...

    def tails(self, topic: str, key: str) -> Iterator[list[bytes]]: ...

    def ends(self, topic: str) -> dict[int, int]: ...

    def lasts(self, topic: str, is_wanted: Callable[[bytes, bytes], bool], starts: Sequence[int]) -> list[bytes]: ...


@dataclass(frozen=True, slots=True)
class PriorState:
    """The registry's entries of ``source``, and the last transaction in the topic of fragments.

    ``published_lsn`` is the greatest LSN of all that was published of the source, -1 if nothing was. Shape changes may
    be ahead of fragments. ``ends``: as in the source's entry, when that was read.
    """

    source: SourceName
    entries: SourceEntries
    last_transaction: TransactionIdentity | None
    published_lsn: int = -1
    ends: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def read_prior_state(
    reader: Reader, topics: Topics, base: SourceName, *, new_epoch: bool = False, least: SourceName | None = None
) -> PriorState:
    """Read the state of the slot's current source, or of ``least`` if that is later.

    Without either it is ``base``, named by the server's timeline; a source keeps its name on later ones. ``new_epoch``
    starts the epoch after the last one.

    Raises:
        BrokerError: a topic cannot be read.
        DecodeError: it has an entry that cannot be parsed.
    """
    entries = last_entries(reader.values(topics.shapes))
    names = (entry.source for entry in entries if isinstance(entry, SourceEntry))
    current = current_sources(base.slot, names).get(base.system_id)
    source = base if current is None else current
    source = replace(source, epoch=source.epoch + new_epoch)
    if least is not None:
        source = max(source, least)
    name = str(source)
    own = [entry for entry in entries if entry.source == name]
    found = SourceEntries(
        next((entry for entry in own if isinstance(entry, SourceEntry)), None),
        tuple(entry for entry in own if isinstance(entry, ShapeEntry)),
        tuple(entry for entry in own if isinstance(entry, TableEntry)),
        tuple(entry for entry in own if isinstance(entry, PartitionEntry)),
    )
    ends = _ends(reader, topics.fragments), _ends(reader, topics.shape_changes)
    if found.source is None:
        # Nothing is read, but a missing privilege shows now rather than after the first lost connection.
        reader.lasts(topics.shape_changes, lambda *_: False, ends[1])
        return PriorState(source, found, None, ends=ends)
    last_transaction = _last_transaction(reader, topics.fragments, name)
    return PriorState(source, found, last_transaction, _published_lsn(reader, topics, found.source), ends)


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


def _ends(reader: Reader, topic: str) -> tuple[int, ...]:
    """The Kafka offset after the last record of each partition, by its number."""
    return tuple(end for _, end in sorted(reader.ends(topic).items()))


def _published_lsn(reader: Reader, topics: Topics, entry: SourceEntry) -> int:
    """The greatest LSN in the topics, which within a connection rises in each partition.

    The claim of the last connection has the greatest LSN of all before, and where the topics ended then. What a capture
    before may have sent since is not above that LSN. So above it, the last record of each partition has the greatest of
    the last connection. An entry of an earlier release has no claim: then all fragments are read.
    """
    key, prefix = fragment_key(entry.source).encode(), shape_keys_prefix(entry.source)
    fragment_ends, change_ends = entry.ends or ((), ())
    least = -1 if entry.published_lsn is None else entry.published_lsn

    def is_fragment(found: bytes, value: bytes) -> bool:
        return found == key and _fragment_lsn(value) > least

    def is_change(found: bytes, value: bytes) -> bool:
        return found.startswith(prefix) and _change_lsn(value) > least

    parts: Iterable[list[bytes]] = [reader.lasts(topics.fragments, is_fragment, fragment_ends)]
    if entry.published_lsn is None:
        parts = reader.tails(topics.fragments, fragment_key(entry.source))
    changes = reader.lasts(topics.shape_changes, is_change, change_ends)
    fragment_lsns = [_fragment_lsn(value) for part in parts for value in part]
    return max([least, *fragment_lsns, *map(_change_lsn, changes)])


def _fragment_lsn(value: bytes) -> int:
    return FragmentEvent.from_json(value).lsn


def _change_lsn(value: bytes) -> int:
    return ShapeChangesEvent.from_json(value).last_log_offset.tx_offset


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
