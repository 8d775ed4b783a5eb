"""``CapturedSource``: the state of one source, kept across reconnects for the life of the process."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from flushtracker.capture.capture_config import CaptureConfig
from flushtracker.capture.history_check import TransactionIdentity, check_positions
from flushtracker.capture.outbox import Outbox, Publisher
from flushtracker.capture.standby_status import StandbyStatus
from flushtracker.capture.subscriptions import Subscriptions, Tables
from flushtracker.errors import SlotError
from flushtracker.events.registry_events import RegistryEntry, ShapeEntry, SourceEntry, parse_registry_entry
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.kafka.records import fragment_key
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.shapes.shapes_file import ShapesFile
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.source_name import in_epoch, last_epoch


@dataclass(frozen=True, slots=True)
class PriorState:
    """What earlier processes left: the registry's entries, and the last transaction in the topic of fragments."""

    source_entry: SourceEntry | None
    shape_entries: tuple[ShapeEntry, ...]
    last_transaction: TransactionIdentity | None


class CapturedSource:
    """One source. Create it only while holding the slot: until then another process may change what is read here.

    ``base`` is the source's name without its epoch; ``new_epoch`` starts the next epoch.
    """

    def __init__(self, config: CaptureConfig, base: str, publisher: Publisher, *, new_epoch: bool) -> None:
        self.base = base
        self._config = config
        reader = TopicReader(config.kafka)
        try:
            entries = _last_entries(reader.values(config.kafka.topics.shapes))
            epoch = last_epoch(base, [entry.source for entry in entries if isinstance(entry, SourceEntry)])
            self.name = in_epoch(base, (epoch or 0) + new_epoch)
            self._prior = _prior_state(self.name, entries, reader, config.kafka.topics.fragments)
        finally:
            reader.close()
        self.last_transaction = self._prior.last_transaction
        self.status = StandbyStatus(0)
        self.outbox = Outbox(publisher, config.kafka.topics, self._handle_published)
        self.subscriptions: Subscriptions | None = None
        self._published_lsn = -1

    def connect(self, status: StandbyStatus, *, wal_lsn: int, confirmed_lsn: int, last_ack: int | None) -> None:
        """Continue over a new connection that holds the slot; its positions are kept in ``status``.

        Raises:
            SlotError: the server does not continue what was published and acknowledged, or the registry is lost.
        """
        source_entry = self._prior.source_entry
        if source_entry is None and last_ack is not None:
            raise SlotError(
                f"source {self.name} has acks up to {format_lsn(last_ack)}, but no entry in the shape registry: its "
                "topic was lost or replaced. Restore the topic, or start with --new-epoch and new shapes"
            )
        start_lsn = confirmed_lsn - 1 if source_entry is None else source_entry.starts_after.tx_offset
        check_positions(
            self.name,
            wal_lsn=wal_lsn,
            confirmed_lsn=confirmed_lsn,
            safe_lsn=max(start_lsn, -1 if last_ack is None else last_ack),
            published_lsn=None if self.last_transaction is None else self.last_transaction.lsn,
        )
        self.status = status
        status.handle_published(self._published_lsn)

    def begin(self, tables: Tables, confirmed_lsn: int, load_shapes: Callable[[], ShapesFile]) -> Subscriptions:
        """The source's shapes; the first call applies the shapes file, and registers the source if it is new.

        Raises:
            ShapeError: a definition is refused, or too many shapes would be removed.
        """
        if self.subscriptions is not None:
            self.subscriptions.tables = tables
            return self.subscriptions
        first = None if self._prior.source_entry is not None else LogOffset.just_before(confirmed_lsn)
        subscriptions = Subscriptions(self.name, self._prior.shape_entries, self.outbox, tables, first)
        shapes = load_shapes()
        subscriptions.apply_definitions(shapes.definitions, shapes.allow_removing)
        if first is not None:
            # After the shapes: until this entry exists, nothing was routed, and they may start at the slot's position.
            source_entry = SourceEntry(self.name, first)
            self.outbox.publish_entries([source_entry])
            self._prior = PriorState(source_entry, self._prior.shape_entries, self._prior.last_transaction)
        subscriptions.mark_source_begun()
        self.subscriptions = subscriptions
        return subscriptions

    def _handle_published(self, commit_lsn: int) -> None:
        self._published_lsn = max(self._published_lsn, commit_lsn)
        self.status.handle_published(commit_lsn)


def _last_entries(values: Iterable[bytes]) -> list[RegistryEntry]:
    """The last entry of each key, as after compaction."""
    entries: dict[tuple[str, str], RegistryEntry] = {}
    for value in values:
        entry = parse_registry_entry(value)
        entries[entry.source, entry.definition.id if isinstance(entry, ShapeEntry) else ""] = entry
    return list(entries.values())


def _prior_state(
    source: str, entries: Iterable[RegistryEntry], reader: TopicReader, fragments_topic: str
) -> PriorState:
    own = [entry for entry in entries if entry.source == source]
    source_entry = next((entry for entry in own if isinstance(entry, SourceEntry)), None)
    last: TransactionIdentity | None = None
    for values in reader.tails(fragments_topic, fragment_key(source)) if source_entry is not None else ():
        events = [FragmentEvent.from_json(value) for value in values]
        transactions = [
            TransactionIdentity(event.lsn, event.xid, event.commit.commit_timestamp)
            for event in events
            if event.xid is not None and event.commit is not None
        ]
        last = max(transactions, key=attrgetter("lsn"), default=None)
        if last is not None:
            break
    return PriorState(source_entry, tuple(entry for entry in own if isinstance(entry, ShapeEntry)), last)
