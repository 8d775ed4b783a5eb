"""``Subscriptions`` with a scripted catalog: tables change between two queries of one change of the shapes file."""

from dataclasses import replace

import pytest

from flushtracker.capture.shapes.delayed_shapes import DelayedShapes
from flushtracker.capture.wire.history_check import TransactionIdentity
from flushtracker.events.registry_events import (
    SourceEntry,
)
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.status.capture_status import Eviction
from flushtracker.wal.changes import Column, Relation
from tests.support.scripted_source import LSN, NAME, ROOT, TABLE, Source, partition, relation


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


def test_the_next_process_knows_of_the_eviction_of_a_shape_that_has_begun_again() -> None:
    """Its entry was replaced, and with it the eviction was forgotten, so that an hour could have more than allowed."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    assert source.subscriptions.evict("a", "its writer is silent", 5_000)
    source.define(ShapeDefinition("a", NAME, incarnation=2))
    assert source.published("a").removed_at is None
    assert source.subscriptions.evictions == (Eviction("a", 5_000, "its writer is silent"),)
    source.resume(source.registered(), LSN)
    (found,) = source.subscriptions.evictions
    assert (found.shape_id, found.at_ms) == ("a", 5_000)
    source.define(ShapeDefinition("a", NAME, incarnation=3))
    assert source.subscriptions.evictions == (found,), "counted once, while a live one begins again"
    assert source.subscriptions.evict("a", "again", 6_000)
    source.define(ShapeDefinition("a", NAME, incarnation=4))
    source.resume(source.registered(), LSN)
    assert [each.at_ms for each in source.subscriptions.evictions] == [6_000]
    source.define()
    assert source.published("a").evicted_at_ms is None, "its owner has removed it"


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
    assert source.joined() == {71: 0, 72: 0}


def test_many_new_partitions_are_read_once_and_join_each_with_its_first_change() -> None:
    """All were created before the first of them was changed; reading all of them for each would be quadratic."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    new = [partition(number) for number in range(3, 53)]
    source.tables.table = replace(TABLE, partitions=(partition(1), *new))
    source.tables.reads = 0
    for number, each in enumerate(new):
        source.subscriptions.tables.handle_relation(relation(each), TransactionIdentity(LSN + number, 800, "t"))
        assert source.joined() == {71: 0} | {other.oid: LSN + at for at, other in enumerate(new[: number + 1])}
    assert source.tables.reads == 1
    # One entry for each when it was found, and one when it joined; nothing has all of them.
    assert (
        len([value for topic, value in source.publisher.values if topic == "s" and '"partition"' in str(value)]) == 101
    )
    assert max(len(value) for topic, value in source.publisher.values if topic == "s") < 1000
    # A reconnect reads the table once, and another process knows when each has joined.
    before = source.joined()
    source.subscriptions.connect(source.tables, LSN)
    source.subscriptions.tables.check()
    for each in new:
        source.subscriptions.tables.handle_relation(relation(each), TransactionIdentity(LSN, 800, "t"))
    assert source.tables.reads == 2
    source.resume(source.registered(), LSN)
    assert source.joined() == before
    assert source.subscriptions.router.shape_ids == {"a"}


def test_a_table_of_any_number_of_partitions_fits_into_small_records() -> None:
    """One with thousands of them can have shapes where a broker takes a megabyte, also after it had none for a time."""
    source = Source()
    source.tables.table = replace(TABLE, partitions=tuple(map(partition, range(1, 2_001))))
    for definitions in ([ShapeDefinition("a", NAME)], [], [ShapeDefinition("b", NAME)]):
        source.define(*definitions)
    assert max(len(str(value)) for _, value in source.publisher.values) < 1000
    source.resume(source.registered(), LSN)
    assert source.joined() == {70 + number: 0 for number in range(1, 2_001)}


@pytest.mark.parametrize("what", ["definition", "table"])
def test_a_shape_that_does_not_fit_into_a_record_is_refused(what: str) -> None:
    """Its entry would be rejected by the broker, which ends capture, and again at each start."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    before = list(source.publisher.values)
    many = ", ".join(map(str, range(200_000)))
    large = ShapeDefinition("b", NAME, where=f"id IN ({many})" if what == "definition" else None)
    if what == "table":
        labels = tuple(EnumLabel(number, "x" * 60, 5) for number in range(1, 20_001))
        source.tables.table = replace(TABLE, types=(TypeBinding(16_400, "public", "mood", "enum", labels=labels),))
    message = {"definition": "its definition", "table": "the description of table public.t"}[what]
    source.define(ShapeDefinition("a", NAME), large)
    (refused,) = source.subscriptions.refused.shown
    assert refused.shape_id == "b"
    assert refused.reason.startswith(f"shape 'b': {message} is an event of ")
    assert " bytes, over the limit of 1044480 (max_event_bytes, 1048576, less the key)" in refused.reason
    assert source.publisher.values == before
    assert source.subscriptions.router.shape_ids == {"a"}


def test_a_table_is_read_again_for_a_transaction_that_was_not_visible_then() -> None:
    """It may have altered the table."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    source.tables.xmax = 800
    source.subscriptions.tables.handle_relation(relation(partition(1)), TransactionIdentity(LSN, 799, "t"))
    source.tables.reads, source.tables.xmax = 0, 900
    source.subscriptions.tables.handle_relation(relation(partition(1)), TransactionIdentity(LSN + 1, 799, "t"))
    assert source.tables.reads == 0
    source.subscriptions.tables.handle_relation(relation(partition(1)), TransactionIdentity(LSN + 1, 800, "t"))
    assert source.tables.reads == 1
    source.tables.standby = True
    source.subscriptions.tables.check()
    source.subscriptions.tables.handle_relation(relation(partition(1)), TransactionIdentity(LSN + 1, 800, "t"))
    assert source.tables.reads == 3


def test_the_transaction_with_which_a_partition_joins_is_not_confirmed_before_the_registry_has_it() -> None:
    """After that transaction is no longer sent again, a later process could not find it out."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    source.tables.table = replace(TABLE, partitions=(partition(1), partition(3)))
    source.subscriptions.tables.check()
    assert source.joined() == {71: 0}
    before = len(source.publisher.unconfirmed)
    source.subscriptions.tables.handle_relation(relation(partition(3)), TransactionIdentity(LSN, 800, "t"))
    assert source.joined() == {71: 0, 73: LSN}
    assert (before, len(source.publisher.unconfirmed)) == (0, 1)
    assert source.outbox.pending_fragments == 1
    source.publisher.confirm()
    assert source.outbox.pending_fragments == 0


def test_a_partition_found_when_a_shape_is_added_joins_both_old_and_new_shapes_with_its_first_change() -> None:
    """The stream has not reached its creation, so a TRUNCATE of all others may still come."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    source.tables.table = replace(TABLE, partitions=(partition(1), partition(3)))
    source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME))
    assert source.joined() == {71: 0}
    source.resume(source.registered(), LSN)
    assert source.joined() == {71: 0}


def test_partitions_of_a_table_that_lost_its_shapes_are_bound_afresh() -> None:
    """Nothing of the table was routed in between, so each may have rows; one is gone, and one is new."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    source.tables.table = replace(TABLE, partitions=(partition(1), partition(3), partition(4)))
    source.subscriptions.tables.handle_relation(relation(partition(3)), TransactionIdentity(LSN, 800, "t"))
    source.define()
    source.tables.table = replace(TABLE, partitions=(partition(3), partition(5)))
    source.define(ShapeDefinition("b", NAME))
    assert source.joined() == {73: 0, 75: 0}
    source.resume(source.registered(), LSN)
    assert source.joined() == {73: 0, 75: 0}
    assert source.subscriptions.router.shape_ids == {"b"}


def test_a_table_of_the_same_name_does_not_concern_the_shapes_of_another() -> None:
    """A schema was renamed, and a new one took its name: nothing of the new table is about the old one's shapes."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    other = Relation(500, *NAME, "default", (Column("id", 23, is_key=True), Column("x", 25)))
    source.subscriptions.tables.handle_relation(other, TransactionIdentity(LSN + 600, 800, "t"))
    assert not source.subscriptions.router.tables.has_shapes_on(500)
    assert source.published("a").removed_at is None


def test_shapes_end_once_for_each_change_of_the_publication() -> None:
    """What it is by then is known to the next process, which keeps the shapes that were added since."""
    source = Source()
    source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME))
    source.subscriptions.check_publication()
    assert source.published("a").removed_at is None
    source.tables.publication = "1/2"
    source.subscriptions.check_publication()
    assert "the publication was altered" in str(source.published("a").ended_because)
    source.define(ShapeDefinition("b", NAME), ShapeDefinition("c", NAME))
    source.resume(source.registered(), LSN)
    source.subscriptions.check_publication()
    assert source.published("c").removed_at is None
    assert [entry.publication for entry in source.registry() if isinstance(entry, SourceEntry)] == ["1/2"]


def columns(order: str, version: int) -> tuple[ColumnBinding, ...]:
    """These columns, of which ``v`` was altered by the transaction ``version``."""
    return tuple(
        ColumnBinding(n, name, 25, -1, version if name == "v" else 5) for n, name in enumerate(order.split(), 1)
    )


@pytest.mark.parametrize(
    ("oid", "sent", "lsn", "ends"),
    [
        (ROOT, "id v u", LSN + 599, False),
        (ROOT, "id u v", LSN + 599, True),
        (ROOT, "id u v", LSN + 600, False),
        (71, "u v id", LSN + 599, False),
        (71, "id v u", LSN + 599, True),
        (71, "id v u", LSN + 600, False),
    ],
    ids=str,
)
def test_an_altered_column_may_have_had_another_name_only_in_earlier_transactions(
    oid: int, sent: str, lsn: int, *, ends: bool
) -> None:
    """Only the order of the columns would show it, which is one of its own in a partition."""
    source = Source()
    source.tables.table = replace(TABLE, columns=columns("id v u", 5))
    source.define(ShapeDefinition("a", NAME))
    source.tables.table, source.tables.ends_at = replace(TABLE, columns=columns("id v u", 800)), LSN + 600
    source.tables.own[71] = replace(TABLE, oid=71, columns=columns("u v id", 800))
    source.subscriptions.tables.check()
    described = replace(relation(partition(1)), columns=tuple(Column(name, 25) for name in sent.split()))
    if oid == ROOT:
        described = replace(described, relation_id=ROOT, name="t")
    source.subscriptions.tables.handle_relation(described, TransactionIdentity(lsn, 700, "t"))
    assert (source.published("a").removed_at is not None) == ends


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_change_from_before_its_table_was_attached_ends_the_shapes(*, is_restarted: bool) -> None:
    """It was a table of its own, and empty when found: a change from before that may be the table's, or its own."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    arrived = replace(partition(2), may_have_rows=True)
    source.tables.table, source.tables.emptied_at = replace(TABLE, partitions=(partition(1), arrived)), LSN + 700
    source.subscriptions.tables.check()
    if is_restarted:
        source.resume(source.registered(), LSN)
    source.subscriptions.tables.handle_relation(relation(arrived), TransactionIdentity(LSN + 699, 700, "t"))
    reason = source.published("a").ended_because
    assert reason is not None
    assert reason.startswith(f"partition public.t_2 was changed by transaction 700 at 0/{LSN + 699:X} (t), before or")
    assert source.joined() == {71: 0}


def test_an_attached_empty_table_joins_with_its_first_change_since() -> None:
    """It was seen before its first row."""
    source = Source()
    source.define(ShapeDefinition("a", NAME))
    arrived = replace(partition(2), may_have_rows=True)
    source.tables.table, source.tables.emptied_at = replace(TABLE, partitions=(partition(1), arrived)), LSN + 700
    source.subscriptions.tables.check()
    source.subscriptions.tables.handle_relation(relation(arrived), TransactionIdentity(LSN + 700, 700, "t"))
    assert source.published("a").removed_at is None
    assert source.joined() == {71: 0, 72: LSN + 700}


def test_a_partition_that_was_published_after_it_got_rows_ends_the_shape() -> None:
    """The publication lists partitions, and the new one was added to it late: its first rows were never sent."""
    source = Source()
    first, second = (replace(partition(number), published_by=(f"table {number}",)) for number in (1, 2))
    source.tables.table = replace(TABLE, partitions=(first,), published_by=())
    source.define(ShapeDefinition("a", NAME))
    source.tables.table = replace(TABLE, partitions=(first, second), published_by=())
    source.subscriptions.tables.check()
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


def test_a_delayed_shape_is_not_forgotten_when_the_registry_is_read_again() -> None:
    """Another process has changed the registry during a reconnect: what it has added stays, though not in this file."""
    source, delayed = Source(), DelayedShapes()
    source.resume(source.registered(), LSN, delayed)
    source.tables.open = frozenset({700})
    source.subscriptions.connect(source.tables, LSN)
    source.tables.written = {ROOT: frozenset({700})}
    source.define(ShapeDefinition("a", NAME))
    source.tables.open, source.tables.written = frozenset(), {}
    source.resume(source.registered(), LSN)
    source.define(ShapeDefinition("other", NAME))
    source.resume(source.registered(), LSN, delayed)
    assert source.subscriptions.can_add_delayed()
    source.subscriptions.add_waiting()
    assert source.subscriptions.router.shape_ids == {"a", "other"}
    assert not source.subscriptions.can_add_delayed()


@pytest.mark.parametrize(
    "now",
    [
        replace(TABLE, partitions=(replace(partition(1), published_by=()),)),
        TABLE,
        replace(TABLE, table=("elsewhere", "t"), partitions=(replace(partition(1), published_by=()),)),
        None,
    ],
    ids=["as before", "published", "renamed", "dropped"],
)
def test_a_shape_waits_for_its_table_to_be_published_while_that_has_its_name(now: TableBinding | None) -> None:
    """Otherwise its definition is refused with what is wrong by then, or another table has the name."""
    source = Source()
    unpublished = source.tables.table = replace(TABLE, partitions=(replace(partition(1), published_by=()),))
    source.define(ShapeDefinition("a", NAME))
    assert source.subscriptions.router.shape_ids == set()
    source.tables.own = {ROOT: now}
    assert source.subscriptions.can_add_delayed() == (now != unpublished)


def test_a_delayed_shape_is_added_when_the_file_is_applied_again() -> None:
    """It starts then; and one that is no longer defined by then is never added."""
    source = Source()
    source.tables.open = frozenset({700})
    source.subscriptions.connect(source.tables, LSN)
    shapes = [ShapeDefinition("a", NAME), ShapeDefinition("b", NAME, snapshot=False)]
    source.tables.written = {ROOT: frozenset({700})}
    source.define(*shapes)
    assert source.subscriptions.router.shape_ids == set()
    assert not source.subscriptions.can_add_delayed()
    source.tables.open = frozenset()
    source.tables.written = {}
    assert source.subscriptions.can_add_delayed()
    source.define(shapes[1])
    assert source.published("b").starts_after.tx_offset == LSN + 499
    assert source.subscriptions.router.shape_ids == {"b"}
    assert not source.subscriptions.can_add_delayed()
    assert source.tables.flushes == 1
