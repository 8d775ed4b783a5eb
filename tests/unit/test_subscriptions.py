"""``Subscriptions`` with a scripted catalog: tables change between two queries of one change of the shapes file."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from flushtracker.capture.outbox import Outbox
from flushtracker.capture.shape_registry import SourceEntries
from flushtracker.capture.subscriptions import Subscriptions
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.kafka.kafka_config import Topics
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.status.capture_status import Eviction
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.fake_publisher import FakePublisher

ROOT, LSN = 7, 1000
NAME = ("public", "t")


def partition(number: int) -> PartitionBinding:
    return PartitionBinding(70 + number, ("public", f"t_{number}"), 1, "/5", published_by=("all tables",))


TABLE = TableBinding(
    ROOT,
    NAME,
    ("id",),
    (ColumnBinding(1, "id", 25, -1, 5),),
    (partition(1),),
    is_partitioned=True,
    published_by=("all tables",),
)


class ScriptedTables:
    """The catalog; ``after_resolve`` runs after each shape is completed from it."""

    def __init__(self) -> None:
        self.table = TABLE
        self.after_resolve: Callable[[], None] = lambda: None

    def wal_end(self) -> int:
        return LSN + 500

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> list[tuple[ShapeDefinition, TableBinding]]:
        return [self._resolved(definition) for definition in definitions]

    def _resolved(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, TableBinding]:
        table = self.table
        self.after_resolve()
        partitions = tuple(each.table for each in table.partitions)
        return replace(definition, primary_key=("id",), partitions=partitions), table

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        raise AssertionError((oid, xid))

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        return dict.fromkeys(oids, self.table)

    def has_rows(self, oid: int) -> bool:
        assert oid == partition(2).oid
        return True

    def check_publication(self) -> str:
        return "1/1"

    def snapshot(self) -> MvccSnapshot:
        return MvccSnapshot(1_000_000, 1_000_000)

    def is_standby(self) -> bool:
        return False

    def in_progress(self) -> dict[int, bool]:
        return {}

    def flush_wal(self, lsn: int) -> None:
        assert lsn >= 0


class Source:
    """A source with shapes on one partitioned table."""

    def __init__(self) -> None:
        self.tables = ScriptedTables()
        self.publisher = FakePublisher()
        self.resume(SourceEntries(), LSN)
        self.subscriptions.begin_source()

    def resume(self, entries: SourceEntries, confirmed_lsn: int) -> None:
        """Continue from these entries, as another process."""
        topics = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
        outbox = Outbox(self.publisher, topics, lambda _: None)
        self.subscriptions = Subscriptions("7/1/s", entries, outbox, self.tables, confirmed_lsn)

    def define(self, *definitions: ShapeDefinition) -> None:
        self.subscriptions.apply_definitions(definitions, allow_removing=1)

    def published(self, shape_id: str) -> ShapeEntry:
        """The last entry of a shape that reached the registry."""
        entries = [parse_registry_entry(value) for topic, value in self.publisher.values if topic == "s"]
        return [each for each in entries if isinstance(each, ShapeEntry) and each.definition.id == shape_id][-1]

    def drop_key(self) -> None:
        self.tables.table = replace(TABLE, key=())


def test_a_shape_that_ends_while_it_is_updated_stays_ended() -> None:
    """The update was prepared before the other shape's table was read, and would have brought it back."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    source.drop_key()
    source.define(ShapeDefinition("a", NAME, depends_on=("b",)), ShapeDefinition("b", NAME))
    assert "the key of table" in str(source.published("a").ended_because)
    assert source.published("b").removed_at is None


def test_an_evicted_shape_is_ended_with_its_reason_and_known_to_the_next_process() -> None:
    """The others stay. What still defines it changes nothing, and it is not evicted twice."""
    source = Source()
    source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME))
    assert source.subscriptions.evict("a", "its writer is silent", 5_000)
    entry = source.published("a")
    assert (entry.ended_because, entry.evicted_at_ms) == ("its writer is silent", 5_000)
    assert source.subscriptions.evictions == (Eviction("a", 5_000, "its writer is silent"),)
    assert any(topic == "l" and "removed" in str(value) for topic, value in source.publisher.values)
    source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME))
    assert not source.subscriptions.evict("a", "again", 6_000)
    assert not source.subscriptions.evict("never defined", "again", 6_000)
    assert source.subscriptions.router.shape_ids == {"b"}
    evictions = source.subscriptions.evictions
    source.resume(source.subscriptions.entries, LSN)
    assert source.subscriptions.evictions == evictions
    assert len(evictions) == 1


def test_a_shape_that_ends_while_it_is_removed_does_not_hold_up_a_new_one() -> None:
    """The new shape was registered, but its changes were never routed."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    source.drop_key()
    source.define(ShapeDefinition("b", NAME))
    assert "the key of table" in str(source.published("a").ended_because)
    assert source.published("b").removed_at is None
    source.define()
    assert source.published("b").removed_at is not None


def test_a_partition_created_between_two_new_shapes_belongs_to_both() -> None:
    """The table's description has it already, so no later comparison would have added it to the first."""
    source = Source()

    def create_partition() -> None:
        source.tables.table = replace(TABLE, partitions=(partition(1), partition(2)))

    source.tables.after_resolve = create_partition
    source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME))
    both = (("public", "t_1"), ("public", "t_2"))
    assert source.published("a").definition.partitions == both
    assert source.published("b").definition.partitions == both


def test_a_partition_that_was_published_after_it_got_rows_ends_the_shape() -> None:
    """The publication lists partitions, and the new one was added to it late: its first rows were never sent."""
    source = Source()
    first, second = (replace(partition(number), published_by=(f"table {number}",)) for number in (1, 2))
    source.tables.table = replace(TABLE, partitions=(first,), published_by=())
    source.define(ShapeDefinition("a", NAME))
    source.tables.table = replace(TABLE, partitions=(first, second), published_by=())
    source.subscriptions.check_tables()
    assert "may have had rows" in str(source.published("a").ended_because)


def test_a_shape_is_published_again_once_its_start_is_visible() -> None:
    """With everything else as it was; only a shape with a snapshot waits, and it has one unless it says otherwise."""
    source = Source()
    source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME, snapshot=False))
    first = source.published("a")
    assert (first.definition.snapshot, first.starts_visible) == (True, False)
    source.subscriptions.starts.handle_keepalive(LSN + 499)
    source.subscriptions.check_starts(0.0)
    assert source.published("a") == first
    source.subscriptions.starts.handle_keepalive(LSN + 500)
    source.subscriptions.check_starts(0.0)
    assert source.published("a") == replace(first, starts_visible=True)
    assert (source.published("b").definition.snapshot, source.published("b").starts_visible) == (False, False)
    count = len(source.publisher.values)
    source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME))
    source.subscriptions.check_starts(0.0)
    assert len(source.publisher.values) == count


def test_a_shape_that_is_removed_while_its_start_is_invisible_stays_removed() -> None:
    """Its entry was to be published again, and would have brought it back."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    source.define()
    source.subscriptions.starts.handle_keepalive(LSN + 500)
    source.subscriptions.check_starts(0.0)
    assert source.published("a").removed_at is not None


def test_a_start_that_was_invisible_is_waited_for_over_the_next_connection() -> None:
    """What this one was still to receive may have been confirmed meanwhile."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    source.subscriptions.connect(source.tables, LSN + 499)
    source.subscriptions.check_starts(0.0)
    assert not source.published("a").starts_visible
    source.subscriptions.connect(source.tables, LSN + 500)
    source.subscriptions.check_starts(0.0)
    assert source.published("a").starts_visible


def test_a_start_that_was_invisible_is_waited_for_by_the_next_process() -> None:
    """It has the entry from the registry."""
    first, second = Source(), Source()
    first.define(ShapeDefinition("a", NAME))
    second.resume(first.subscriptions.entries, LSN + 500)
    second.subscriptions.check_starts(0.0)
    assert second.published("a") == replace(first.published("a"), starts_visible=True)
