"""``PriorState``: the state of a source in the topics, whichever process published it.

Read it only while holding the slot: until then another process may change it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Protocol

from flushtracker.capture.shapes.shape_registry import SourceEntries, trimmed
from flushtracker.capture.wire.history_check import TransactionIdentity
from flushtracker.errors import SlotError
from flushtracker.events.records import fragment_key, record_of, shape_keys_prefix
from flushtracker.events.registry_events import (
    PartitionEntry,
    RegistryEntry,
    ShapeEntry,
    SourceEntry,
    TableEntry,
    parse_registry_entry,
)
from flushtracker.events.stream_events import FragmentEvent, ShapeChangesEvent
from flushtracker.events.topic_rules import Topics
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

    ``system_id`` is the server's; if the source was captured on another one, the server was upgraded from that.
    ``published_lsn`` is the greatest LSN published for the source, -1 for none; shape changes may be ahead of
    fragments. ``ends`` are the partitions' ends, as in the source's entry, when that was read.
    """

    source: SourceName
    system_id: str
    entries: SourceEntries
    last_transaction: TransactionIdentity | None
    published_lsn: int = -1
    ends: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def is_upgrade(self) -> bool:
        return self.entries.source is not None and self.entries.source.server_id != self.system_id


@dataclass(frozen=True, slots=True)
class Succession:
    """Which source to capture: ``new_epoch`` starts the epoch after the last one.

    So does ``upgraded_from``, on a server that was upgraded from the one with this system identifier, unless that was
    done before. If a seal on this server names the old one, ``sealed_from``, its source continues.
    """

    new_epoch: bool = False
    upgraded_from: str | None = None
    sealed_from: str | None = None


_NO_SUCCESSION: Final = Succession()


def read_prior_state(
    reader: Reader,
    topics: Topics,
    base: SourceName,
    succession: Succession = _NO_SUCCESSION,
    *,
    least: SourceName | None = None,
) -> PriorState:
    """Read the state of the slot's current source on the server, or of ``least`` if that is later.

    Without either it is ``base``, named by the server's timeline, or the next epoch; a source keeps its name on later
    timelines.

    Raises:
        BrokerError: a topic cannot be read.
        DecodeError: it has an entry that cannot be parsed.
        SlotError: the slot's source is that of another server.
    """
    entries = last_entries(reader.values(topics.shapes))
    source = _current_source(entries, base, succession)
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
        # Nothing is read, but a missing privilege is found now rather than after the first lost connection.
        reader.lasts(topics.shape_changes, lambda *_: False, ends[1])
        return PriorState(source, base.system_id, found, None, ends=ends)
    last_transaction = _last_transaction(reader, topics.fragments, name)
    published_lsn = _published_lsn(reader, topics, found.source)
    return PriorState(source, base.system_id, found, last_transaction, published_lsn, ends)


def sources_by_server(entries: Iterable[RegistryEntry], slot: str) -> dict[str, SourceName]:
    """The current source of ``slot`` on each server, by system identifier.

    After a major upgrade, a source continues on another server than its name says.
    """
    servers = {entry.source: entry.server_id for entry in entries if isinstance(entry, SourceEntry)}
    current = current_sources(slot, servers).values()
    return {server: name for name in current if (server := servers[str(name)]) is not None}


def check_new_slot(entries: Iterable[RegistryEntry], base: SourceName, succession: Succession) -> None:
    """Check that a new slot begins a new source, rather than continue one with a gap.

    Otherwise only the slot's position would reveal the gap, and on a restored server it may be below the last ack.
    ``base`` is the server's name for a source that begins now.

    Raises:
        SlotError: it would continue a source, or the slot has a source of another server.
    """
    known = [entry for entry in entries if isinstance(entry, SourceEntry)]
    source = str(_current_source(known, base, succession))
    if any(entry.source == source for entry in known):
        raise SlotError(
            f"slot {base.slot} is gone from the server, and source {source} was captured from it: changes since may be "
            "in no shape, so it is not created again. Start with --create --new-epoch: all shapes begin again"
        )


def _current_source(entries: Iterable[RegistryEntry], base: SourceName, succession: Succession) -> SourceName:
    new_epoch, upgraded_from = succession.new_epoch, succession.upgraded_from
    by_server = sources_by_server(entries, base.slot)
    source = by_server.get(base.system_id)
    if source is not None:
        return replace(source, epoch=source.epoch + new_epoch)
    if succession.sealed_from in by_server and not new_epoch:
        return by_server[succession.sealed_from]
    if upgraded_from is None and not by_server:
        return replace(base, epoch=base.epoch + new_epoch)
    known = ", ".join(f"{name} on server {server}" for server, name in sorted(by_server.items())) or "none"
    if upgraded_from is None:
        raise SlotError(
            f"this is the server with the system identifier {base.system_id}, but slot {base.slot} was captured "
            f"before: {known}. If this server does not have the data of that one, correct postgres, or use "
            "another capture.slot here. If it was made from that one, by pg_upgrade or a dump, start with "
            "--upgraded-from and that identifier: all shapes begin again"
        )
    if upgraded_from not in by_server:
        raise SlotError(f"--upgraded-from {upgraded_from}: slot {base.slot} has no source of that server: {known}")
    before = by_server[upgraded_from]
    return replace(before, epoch=before.epoch + 1)


def last_entries(values: Iterable[bytes]) -> list[RegistryEntry]:
    """The last entry of each key, as after compaction, and trimmed.

    A source's entry gets the greatest ``published_lsn`` found: concurrent claims may have replaced one another.
    """
    entries: dict[str, RegistryEntry] = {}
    for value in values:
        entry = parse_registry_entry(value)
        if isinstance(entry, SourceEntry):
            entry = _with_published(entry, entries.get(record_of(entry).key))
        if isinstance(entry, ShapeEntry):
            # At once, because there may be very many.
            entry = trimmed(entry)
        entries[record_of(entry).key] = entry
    return list(entries.values())


def _with_published(entry: SourceEntry, before: RegistryEntry | None) -> SourceEntry:
    if entry.published_lsn is None or not isinstance(before, SourceEntry) or before.published_lsn is None:
        return entry
    return replace(entry, published_lsn=max(entry.published_lsn, before.published_lsn))


def _ends(reader: Reader, topic: str) -> tuple[int, ...]:
    """The Kafka offset after the last record of each partition, in partition order."""
    return tuple(end for _, end in sorted(reader.ends(topic).items()))


def _published_lsn(reader: Reader, topics: Topics, entry: SourceEntry) -> int:
    """The greatest LSN in the topics. Within a connection, LSNs rise in each partition.

    The claim of the last connection has the greatest LSN of all earlier ones, and the ends of the topics at that time.
    Later records of an earlier capture are not above that LSN. So above it, the last record of each partition has the
    greatest LSN of the last connection. Without a claim, all fragments are read.
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
