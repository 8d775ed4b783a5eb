"""Which shape gets which part of a transaction: the guarantees of the ``EventRouter``, each by name."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import DecodeError, GapError, ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.item_key import key_text
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.wal.changes import (
    Change,
    Delete,
    Insert,
    LogItem,
    Relation,
    Row,
    TransactionFragment,
    Truncate,
    Update,
)
from flushtracker.wal.log_offset import LogOffset
from tests.support.tables import COMMIT, EVENTS_P0, EVENTS_P1, FULL_USERS, LSN, USERS, at, relation, transaction

LATER = LSN + 1000


def shape(shape_id: str, where: str | None = None, table: str = "users") -> ShapeDefinition:
    return ShapeDefinition(shape_id, ("public", table), where=where, primary_key=("id",) if table == "users" else None)


EVENTS = ShapeDefinition("events", ("public", "events"), partitions=(EVENTS_P0.table, EVENTS_P1.table))
LOW, HIGH = shape("low", "id < 100"), shape("high", "id >= 100")


def insert(key: int, region: str = "eu") -> Insert:
    return Insert(USERS, at(0), {"id": str(key), "region": region, "bio": None})


def event(table: Relation, key: int) -> Insert:
    return Insert(table, at(0), {"id": str(key), "day": "1", "body": None})


def route(router: EventRouter, fragments: Sequence[TransactionFragment]) -> list[list[RoutedFragment]]:
    """The routed parts of each fragment, with the router's invariants checked in between."""
    routed = []
    for fragment in fragments:
        routed.append(list(router.route(fragment)))
        router.check_invariants()
    return routed


def summary(routed: Sequence[RoutedFragment]) -> dict[str, str]:
    """``B`` for the begin, ``C`` for the commit and the operations' offsets between them, for each shape."""
    return {
        part.shape_id: "B" * part.has_begin
        + ",".join(str(item.offset.op_offset) for item in part.items)
        + "C" * (part.commit is not None)
        for part in routed
    }


# Which shapes take part


def test_begin_goes_once_to_each_shape_with_its_first_change() -> None:
    """The commit goes to every shape that took part, even if its fragment has nothing for the shape."""
    fragments = transaction([insert(1), insert(2), insert(500), insert(3)], sizes=[2, 1])
    routed = [summary(part) for part in route(EventRouter([LOW, HIGH]), fragments)]
    assert routed == [{"low": "B0,2"}, {"high": "B4"}, {"high": "C", "low": "6C"}]


def test_the_commit_goes_only_to_shapes_that_took_part() -> None:
    """Shapes of other tables, and shapes that nothing matched, do not get it."""
    router = EventRouter([LOW, HIGH, shape("audit", table="audit"), EVENTS])
    assert [summary(part) for part in route(router, transaction([insert(1)]))] == [{"low": "B0C"}]


def test_a_shape_without_a_change_in_the_commit_fragment_is_listed_without_an_offset() -> None:
    """``last_offset`` is ``None`` and ``change_count`` 0, as the fragments stream requires."""
    *_, last = route(EventRouter([LOW, HIGH]), transaction([insert(1), insert(500)], sizes=[1]))
    low = next(part for part in last if part.shape_id == "low")
    expected = RoutedFragment("low", LSN + 7, LSN, at(2), has_begin=False, commit=COMMIT, items=(), change_count=0)
    assert low == expected
    assert low.last_offset is None


def test_a_transaction_that_matches_no_shape_is_routed_to_none() -> None:
    """The same holds for an empty transaction."""
    assert route(EventRouter([LOW]), transaction([insert(500)]) + transaction([], LATER)) == [[], []]


def test_overlapping_shapes_each_get_the_change_in_the_order_of_their_ids() -> None:
    """The order does not depend on when they were added."""
    router = EventRouter([shape("b"), LOW, shape("a")])
    assert [part.shape_id for part in router.route(*transaction([insert(1)]))] == ["a", "b", "low"]


def test_a_shape_does_not_take_part_by_a_change_without_items() -> None:
    """Such as an update outside the shape, or the TRUNCATE of the first of its partitions."""
    outside = Update(USERS, at(0), {"id": "500"}, {"id": "501", "region": "eu", "bio": None})
    fragments = transaction([outside, Truncate(EVENTS_P0, at(0)), Truncate(EVENTS_P1, at(0))], sizes=[2])
    first, last = route(EventRouter([LOW, EVENTS]), fragments)
    assert (first, [part.shape_id for part in last]) == ([], ["events"])


def test_a_keepalive_is_routed_to_no_shape() -> None:
    """It has no changes, but it advances the offset that a removal gets."""
    router = EventRouter([LOW])
    assert router.route(TransactionFragment(None, 50, LogOffset(50, 0), has_begin=True, commit=COMMIT)) == ()
    assert router.remove_shape("low") == LogOffset(50, 0)


# Offsets and counts


def test_a_split_update_counts_as_one_change_with_the_offset_of_its_insert() -> None:
    """The last offset is that of the last item, one past the change's own."""
    change = Update(USERS, at(0), {"id": "1"}, {"id": "2", "region": "eu", "bio": None})
    ((part,),) = route(EventRouter([LOW]), transaction([insert(1), change]))
    assert (part.change_count, part.last_log_offset, part.last_offset) == (2, at(2), at(3))
    assert [item.operation for item in part.items] == ["insert", "delete", "insert"]


def test_an_update_that_moves_between_shapes_is_a_delete_in_one_and_an_insert_in_the_other() -> None:
    """Both have the update's own offset: each shape gets only one item."""
    change = Update(USERS, at(0), {"id": "1"}, {"id": "500", "region": "eu", "bio": None})
    ((high, low),) = route(EventRouter([LOW, HIGH]), transaction([change]))
    assert [(item.operation, item.offset) for item in (*high.items, *low.items)] == [
        ("insert", at(0)),
        ("delete", at(0)),
    ]


# Partitions


def test_a_shape_on_a_partitioned_table_gets_its_partitions_changes() -> None:
    """A shape on one partition gets only that partition's changes, under the partition's name."""
    router = EventRouter([EVENTS, shape("late", table="events_p1")])
    ((events, late),) = route(router, transaction([event(EVENTS_P0, 1), event(EVENTS_P1, 2)]))
    assert [item.key for item in events.items] == ['"public"."events"/"1"/"1"', '"public"."events"/"1"/"2"']
    assert [item.key for item in late.items] == ['"public"."events_p1"/"2"/"1"']


def test_a_truncate_of_all_partitions_empties_the_shape_even_across_fragments() -> None:
    """PostgreSQL sends the TRUNCATE of a partitioned table as one for each partition."""
    fragments = transaction([Truncate(EVENTS_P0, at(0)), insert(1), Truncate(EVENTS_P1, at(0))], sizes=[1, 1])
    routed = route(EventRouter([EVENTS]), fragments)
    assert [summary(part) for part in routed] == [{}, {}, {"events": "B4C"}]
    assert routed[-1][0].items == (LogItem(at(4), "truncate"),)


@pytest.mark.parametrize("sizes", [[], [1]], ids=["in one fragment", "in two"])
def test_a_truncate_of_one_partition_ends_the_shape_on_the_root_when_it_commits(sizes: list[int]) -> None:
    """Which of the shape's rows were in it is not known. Without that shape, the others get the transaction."""
    router = EventRouter([EVENTS, shape("p0", table="events_p0")])
    *earlier, last = transaction([Truncate(EVENTS_P0, at(0)), insert(1)], sizes=sizes)
    route(router, earlier)
    with pytest.raises(ShapeError, match=r"TRUNCATE of partition public\.events_p0 left other partitions") as raised:
        router.route(last)
    assert raised.value.shape_id == "events"
    router.remove_shape("events")
    assert [part.shape_id for part in router.route(last)] == ["p0"]


def test_a_partition_filled_again_after_its_truncate_does_not_hide_it() -> None:
    """Its earlier rows are gone from the table, and still in the shape."""
    refill = Insert(EVENTS_P0, at(0), {"id": "1", "day": "2", "body": None})
    with pytest.raises(ShapeError, match=r"left other partitions of public\.events with rows"):
        route(EventRouter([EVENTS]), transaction([Truncate(EVENTS_P0, at(0)), refill]))


def test_a_truncate_of_each_partition_in_a_transaction_of_its_own_is_none_of_the_table() -> None:
    """What an earlier transaction emptied may have been filled since."""
    router = EventRouter([EVENTS])
    for partition, lsn in ((EVENTS_P0, LSN), (EVENTS_P1, LATER)):
        with pytest.raises(ShapeError, match=f"TRUNCATE of partition {'.'.join(partition.table)} left"):
            router.route(*transaction([Truncate(partition, at(0))], lsn))


# Shapes added and removed


def test_a_shape_added_in_mid_transaction_waits_for_the_next() -> None:
    """Otherwise it would get part of a transaction, and its commit without its begin."""
    router = EventRouter([LOW])
    first, second = transaction([insert(1), insert(2)], sizes=[1])
    router.route(first)
    router.add_shape(shape("new"))
    assert summary(router.route(second)) == {"low": "2C"}
    assert summary(router.route(*transaction([insert(3)], LATER))) == {"low": "B0C", "new": "B0C"}


def test_an_added_shape_gets_no_resent_older_transaction() -> None:
    """Otherwise a resend would route that transaction to other shapes than the first time."""
    router = EventRouter([LOW])
    route(router, transaction([insert(1)]) + transaction([insert(2)], LATER))
    router.add_shape(shape("new"))
    again = route(
        router, transaction([insert(1)]) + transaction([insert(2)], LATER) + transaction([insert(3)], LATER + 9)
    )
    assert [list(summary(part)) for part in again] == [["low"], ["low"], ["low", "new"]]


def test_a_shape_removed_in_mid_transaction_stops_at_once_and_is_named_by_the_commit() -> None:
    """Nothing is routed to it past its removal; the commit still lists it, to close what the tracker registered."""
    router = EventRouter([LOW, shape("all")])
    first, second, last = transaction([insert(1), insert(2), insert(3), insert(4)], sizes=[2, 1])
    router.route(first)
    assert router.remove_shape("low") == first.last_log_offset == at(2)
    assert summary(router.route(second)) == {"all": "4"}
    everyone, low = router.route(last)
    assert (low.shape_id, low.items, low.has_begin, low.commit, low.removed) == ("low", (), False, COMMIT, True)
    assert low.last_offset is None
    assert not everyone.removed
    assert summary(router.route(*transaction([insert(5)], LATER))) == {"all": "B0C"}


def test_a_shape_removed_before_its_first_change_is_not_named_by_the_commit() -> None:
    """It took no part in the transaction."""
    router = EventRouter([LOW, HIGH])
    first, second = transaction([insert(1), insert(500)], sizes=[1])
    router.route(first)
    router.remove_shape("high")
    assert summary(router.route(second)) == {"low": "C"}


def test_a_removal_offset_covers_everything_ever_routed() -> None:
    """Past a split update's insert, past newer transactions during a resend; ``None`` before any fragment."""
    assert EventRouter([LOW]).remove_shape("low") is None
    router = EventRouter([LOW, HIGH])
    split = Update(USERS, at(0), {"id": "1"}, {"id": "2", "region": "eu", "bio": None})
    route(router, transaction([split], LATER) + transaction([insert(1)]))
    assert router.remove_shape("low") == at(1, LATER)


def test_an_id_is_never_that_of_two_shapes() -> None:
    """A shape that is not routed cannot be removed. Whether an id may be used again, the registry decides."""
    router = EventRouter([LOW])
    with pytest.raises(ShapeError, match="shape 'low' cannot be added: its id is in use"):
        router.add_shape(shape("low"))
    router.remove_shape("low")
    for shape_id in ("low", "high"):
        with pytest.raises(ShapeError, match=f"shape '{shape_id}' cannot be removed: it is not routed"):
            router.remove_shape(shape_id)
    assert router.shape_ids == frozenset()
    router.check_invariants()


# Fragments out of order


OPENED = transaction([insert(1), insert(2), insert(3)], sizes=[1, 1])
KEEPALIVE = TransactionFragment(None, LATER, at(0, LATER), has_begin=True, commit=COMMIT)


@pytest.mark.parametrize(
    ("before", "fragment", "message"),
    [
        ([], OPENED[1], r"fragment 0/3E8\+2 of transaction 1007 is not its first, but .* nothing was routed before"),
        ([*OPENED], OPENED[1], r"fragment 0/3E8\+2 .* is not its first, but .* the last offset routed was 0/3E8\+4"),
        ([OPENED[0]], OPENED[0], r"fragment 0/3E8\+0 of transaction 1007 begins inside the open transaction 1007"),
        ([*OPENED[:2]], OPENED[1], r"fragment 0/3E8\+2 .* out of order in the open .* routed up to 0/3E8\+2"),
        (
            [OPENED[0]],
            transaction([insert(1), insert(2)], LATER, sizes=[1])[1],
            (
                r"fragment 0/7D0\+2 of transaction 2007 does not belong to the open transaction 1007 at 0/3E8, "
                r"routed up to 0/3E8\+0"
            ),
        ),
        (
            [OPENED[0]],
            transaction([insert(1)], LATER)[0],
            "of transaction 2007 begins inside the open transaction 1007",
        ),
        ([OPENED[0]], KEEPALIVE, r"keepalive 0/7D0\+0 arrived inside the open transaction 1007"),
        ([], replace(KEEPALIVE, commit=None), r"keepalive 0/7D0\+0 has changes or no commit"),
        ([], replace(KEEPALIVE, changes=(insert(1),)), r"keepalive 0/7D0\+0 has changes or no commit"),
    ],
)
def test_a_fragment_out_of_order_is_refused_with_both_positions(
    before: list[TransactionFragment], fragment: TransactionFragment, message: str
) -> None:
    """Continuing could mix two transactions; the router is unchanged."""
    router = EventRouter([LOW])
    route(router, before)
    with pytest.raises(GapError, match=message):
        router.route(fragment)
    router.check_invariants()


def test_a_transaction_can_be_resent_after_the_connection_was_lost_inside_it() -> None:
    """It starts over with its begin, in other fragments, and after older transactions."""
    router = EventRouter([LOW, HIGH])
    changes = [insert(1), insert(500), insert(2)]
    router.route(transaction(changes, LATER, sizes=[2])[0])
    router.forget_open_transaction()
    routed = route(router, transaction([insert(7)]) + transaction(changes, LATER, sizes=[1]))
    assert [summary(part) for part in routed] == [{"low": "B0C"}, {"low": "B0"}, {"high": "B2C", "low": "4C"}]


def test_a_resent_transaction_is_routed_as_the_first_time() -> None:
    """Both by the same router and by a new one."""
    fragments = transaction([insert(1), Truncate(EVENTS_P0, at(0)), Truncate(EVENTS_P1, at(0)), insert(500)], sizes=[2])
    router = EventRouter([LOW, HIGH, EVENTS])
    first = route(router, fragments)
    assert first == route(router, fragments) == route(EventRouter([EVENTS, HIGH, LOW]), fragments)


def test_a_table_that_cannot_support_a_shape_is_refused_when_it_becomes_known() -> None:
    """Even if it is altered in mid-transaction; the router is unchanged, so the shape can be removed."""
    router = EventRouter([LOW, shape("all")])
    first, second, last = transaction([insert(1), insert(2), insert(3)], sizes=[1, 1])
    router.route(first)
    other = relation("users", "id region* bio")
    deleted = Delete(other, at(2), {"region": "eu"})
    altered = replace(second, changes=(*second.changes, deleted))
    for _ in range(2):
        with pytest.raises(
            ShapeError, match=r"shape 'low' on public\.users: where reads id, but old rows contain only"
        ):
            router.route(altered)
        router.check_invariants()
    router.remove_shape("low")
    with pytest.raises(ShapeError, match=r"shape 'all' on public\.users: primary_key names id"):
        router.route(altered)
    assert summary(router.route(second)) == {"all": "2"}
    assert summary(router.route(last)) == {"all": "4C", "low": "C"}


def test_a_row_that_cannot_be_routed_leaves_the_router_unchanged() -> None:
    """That includes the partitions that the fragment had emptied before the row that raised."""
    router = EventRouter([EVENTS])
    bad = Insert(EVENTS_P1, at(0), {"id": "1"})
    first, fragment = transaction([insert(1), Truncate(EVENTS_P0, at(0)), bad], sizes=[1])
    router.route(first)
    with pytest.raises(DecodeError, match="key column day"):
        router.route(fragment)
    with pytest.raises(ShapeError, match=r"TRUNCATE of partition public\.events_p1 left"):
        router.route(replace(fragment, changes=(Truncate(EVENTS_P1, at(4)),)))


# Properties: random transactions


_IDS = st.integers(0, 6)
_REGIONS = st.sampled_from(["eu", "us", None])
_DEFINITIONS = [
    shape("all"),
    shape("some", "id < 3"),
    shape("none", "id < 0"),
    EVENTS,
    ShapeDefinition("day-one", ("public", "events"), where="day = 1", partitions=EVENTS.partitions),
    shape("late", table="events_p1"),
]


@st.composite
def _changes(draw: st.DrawFn) -> Change:
    table = draw(st.sampled_from([USERS, USERS, EVENTS_P0, EVENTS_P1, relation("noise", "id*")]))
    key = {"id": str(draw(_IDS))}
    if table in (EVENTS_P0, EVENTS_P1):
        key["day"] = str(draw(st.integers(0, 2)))
    rest: Row = {column.name: draw(_REGIONS) for column in table.columns if not column.is_key}
    old = draw(st.none() | st.just({**key, "id": str(draw(_IDS))}))
    kinds: list[Change] = [
        Insert(table, at(0), {**key, **rest}),
        Update(table, at(0), old, {**key, **rest}),
        Delete(table, at(0), key),
        Truncate(table, at(0)),
    ]
    return draw(st.sampled_from(kinds))


def _completed(changes: list[Change]) -> list[Change]:
    """The changes, and if they truncate a partition, a TRUNCATE of the whole table: a partial one ends the shape."""
    if not any(isinstance(change, Truncate) and change.relation in (EVENTS_P0, EVENTS_P1) for change in changes):
        return changes
    return [*changes, Truncate(EVENTS_P0, at(0)), Truncate(EVENTS_P1, at(0))]


def _by_shape(routed: Sequence[Sequence[RoutedFragment]]) -> dict[str, list[RoutedFragment]]:
    parts: dict[str, list[RoutedFragment]] = {}
    for fragment in routed:
        for part in fragment:
            parts.setdefault(part.shape_id, []).append(part)
    return parts


@given(changes=st.lists(_changes(), max_size=12).map(_completed), sizes=st.lists(st.integers(1, 4), max_size=6))
def test_fragments_of_any_size_give_each_shape_what_the_whole_transaction_would(
    changes: list[Change], sizes: list[int]
) -> None:
    """The same items and counts; begin only on the first part, commit only on the last, and no needless part."""
    (whole,) = route(EventRouter(_DEFINITIONS), transaction(changes))
    parts = _by_shape(route(EventRouter(_DEFINITIONS), transaction(changes, sizes=sizes)))
    assert parts.keys() == {part.shape_id for part in whole}
    for expected in whole:
        found = parts[expected.shape_id]
        assert tuple(item for part in found for item in part.items) == expected.items
        assert sum(part.change_count for part in found) == expected.change_count > 0
        assert [part.has_begin for part in found] == [index == 0 for index in range(len(found))]
        assert [part.commit is not None for part in found] == [index == len(found) - 1 for index in range(len(found))]
        assert all(part.items for part in found[:-1])


@given(changes=st.lists(_changes(), max_size=12).map(_completed), sizes=st.lists(st.integers(1, 4), max_size=6))
def test_the_last_offset_is_that_of_the_last_item_and_offsets_only_rise(
    changes: list[Change], sizes: list[int]
) -> None:
    """No item lies more than a split past the fragment's last offset, or at or before the previous fragment."""
    for parts in _by_shape(route(EventRouter(_DEFINITIONS), transaction(changes, sizes=sizes))).values():
        offsets = [item.offset for part in parts for item in part.items]
        assert offsets == sorted(set(offsets))
        for part in parts:
            assert part.last_offset == (part.items[-1].offset if part.items else None)
            assert part.last_offset is None or part.last_offset.op_offset <= part.last_log_offset.op_offset + 1
            assert (part.last_offset is None) == (part.change_count == 0)


Step: TypeAlias = tuple[str, int, int, str | None, bool]
_STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "delete", "truncate"]), _IDS, _IDS, _REGIONS, st.booleans()), max_size=20
)


def _workload(table: Relation, steps: list[Step]) -> tuple[list[Change], dict[str, Row]]:
    """The changes that the server sends for writes to a table of three columns, and the table's final rows."""
    rows: dict[str, Row] = {}
    changes: list[Change] = []
    full = table.replica_identity == "full"
    for action, old_id, new_id, region, is_toast in steps:
        old_key, key = str(old_id), str(new_id)
        old = rows.get(old_key)
        known_old = old if full or old is None else {"id": old_key}
        if action == "truncate":
            rows.clear()
            changes.append(Truncate(table, at(0)))
        elif known_old is None or old is None:
            new: Row = {"id": old_key, "region": region, "bio": f"bio of {old_key}"}
            rows[old_key] = new
            changes.append(Insert(table, at(0), new))
        elif action == "delete":
            del rows[old_key]
            changes.append(Delete(table, at(0), known_old))
        elif key == old_key or key not in rows:
            del rows[old_key]
            # Without the old row, the large value of a row that gets a new key cannot be filled in.
            unchanged = is_toast and (full or key == old_key)
            new = {"id": key, "region": region, "bio": old["bio"] if unchanged else f"{region} {key}"}
            rows[key] = new
            sent = {name: value for name, value in new.items() if not (unchanged and name == "bio")}
            changes.append(Update(table, at(0), known_old if full or key != old_key else None, sent))
    return changes, rows


def _is_eu(row: Row) -> bool:
    return row["region"] == "eu"


def _is_us_or_above_three(row: Row) -> bool:
    return row["region"] == "us" or int(row["id"] or 0) > 3


def _is_below_three(row: Row) -> bool:
    return int(row["id"] or 0) < 3


def _is_row(row: Row) -> bool:
    return "id" in row


@pytest.mark.parametrize("replica", ["default", "full"])
@pytest.mark.parametrize(
    ("table", "where", "is_in"),
    [
        (FULL_USERS, "region = 'eu'", _is_eu),
        (FULL_USERS, "region <> 'eu' OR id > 3", _is_us_or_above_three),
        (FULL_USERS, None, _is_row),
        (USERS, "id < 3", _is_below_three),
        (USERS, None, _is_row),
    ],
)
@given(steps=_STEPS, sizes=st.lists(st.integers(1, 4), max_size=6))
def test_a_copy_built_from_the_items_has_exactly_the_rows_that_match(
    table: Relation,
    where: str | None,
    is_in: Callable[[Row], bool],
    replica: Literal["default", "full"],
    steps: list[Step],
    sizes: list[int],
) -> None:
    """The oracle: the table's own rows, filtered. Each item must also fit the copy's state at that point."""
    changes, rows = _workload(table, steps)
    router = EventRouter([replace(shape("copy", where), replica=replica)])
    copy: dict[str | None, Row] = {}
    for fragment in route(router, transaction(changes, sizes=sizes)):
        for item in (item for part in fragment for item in part.items):
            if item.operation == "truncate":
                copy.clear()
                continue
            assert (item.operation != "insert") == (item.key in copy)
            before = copy.pop(item.key, {}) if item.operation != "insert" else {}
            if item.operation != "delete":
                assert item.value is not None
                copy[item.key] = {**before, **item.value}
            if item.old_value is not None:
                assert item.old_value.items() <= before.items()
    assert copy == {key_text(table.table, [key]): row for key, row in rows.items() if is_in(row)}
