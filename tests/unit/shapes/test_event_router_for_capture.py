"""What capture needs from the router beyond routing: start offsets, new partitions, and errors that name a shape."""

from dataclasses import replace

import pytest

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.shapes.shape_index import ShapeIndex
from flushtracker.wal.changes import Insert, Relation, Truncate
from tests.support.tables import EVENTS_P0, EVENTS_P1, LSN, USERS, at, relation, transaction

ROOT_OID = 7_000


def users(shape_id: str, **fields: str) -> ShapeDefinition:
    return ShapeDefinition(shape_id, ("public", "users"), **fields)  # type: ignore[arg-type]  # only str fields are passed


def insert(key: int) -> Insert:
    return Insert(USERS, at(0), {"id": str(key), "region": "eu", "bio": None})


@pytest.mark.parametrize(("lsn", "gets"), [(LSN, []), (LSN + 1, ["users"])])
def test_a_shape_gets_nothing_at_or_below_its_start(lsn: int, gets: list[str]) -> None:
    """An earlier process may have routed that transaction without the shape, and a resend must not change that."""
    router = EventRouter()
    router.add_shape(users("users"), starts_after=LSN)
    (fragment,) = transaction([insert(1)], lsn)
    assert [part.shape_id for part in router.route(fragment)] == gets
    router.check_invariants()


def test_changes_of_a_partition_found_later_are_routed_from_then_on() -> None:
    """Capture learns of a new partition from the catalog before its first change is routed."""
    router = EventRouter(by_oid=True)
    router.partitions.add(ROOT_OID, EVENTS_P0.relation_id)
    router.add_shape(ShapeDefinition("events", ("public", "events"), primary_key=("id", "day")), table_oid=ROOT_OID)
    row = {"id": "1", "day": "2", "body": "x"}
    (before,) = transaction([Insert(EVENTS_P1, at(0), row)], LSN)
    assert router.route(before) == ()
    assert not router.tables.has_shapes_on(EVENTS_P1.relation_id)
    router.partitions.add(ROOT_OID, EVENTS_P1.relation_id, LSN + 100)
    router.check_invariants()
    assert router.tables.has_shapes_on(EVENTS_P1.relation_id)
    (after,) = transaction([Insert(EVENTS_P1, at(0), row)], LSN + 100)
    assert [part.shape_id for part in router.route(after)] == ["events"]
    (emptied,) = transaction([Truncate(EVENTS_P0, at(0)), Truncate(EVENTS_P1, at(0))], LSN + 200)
    assert [item.operation for part in router.route(emptied) for item in part.items] == ["truncate"]
    router.partitions.discard(ROOT_OID, EVENTS_P1.relation_id)
    assert not router.tables.has_shapes_on(EVENTS_P1.relation_id)
    router.check_invariants()


def test_partitions_in_different_column_orders_share_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order is indexed once, however many partitions have it and however their rows alternate."""
    made: list[Relation] = []
    original = ShapeIndex.__init__

    def counted(index: ShapeIndex, relation: Relation) -> None:
        made.append(relation)
        original(index, relation)

    monkeypatch.setattr(ShapeIndex, "__init__", counted)
    orders = ["id* day* body", "body day* id*"]
    partitions = [replace(relation("p", orders[oid % 2]), relation_id=oid, name=f"p{oid}") for oid in range(1, 9)]
    router = EventRouter(by_oid=True)
    for oid in range(1, 9):
        router.partitions.add(ROOT_OID, oid)
    router.add_shape(ShapeDefinition("day", ("public", "events"), where="day = 2", primary_key=("id",)), -1, ROOT_OID)
    row = {"id": "1", "day": "2", "body": "x"}
    (fragment,) = transaction([Insert(table, at(0), row) for table in (*partitions, *partitions)])
    assert [len(part.items) for part in router.route(fragment)] == [16]
    assert len(made) == 2
    router.check_invariants()
    (altered,) = transaction(
        [Insert(replace(table, columns=partitions[0].columns), at(0), row) for table in partitions]
    )
    assert [len(part.items) for part in router.route(altered)] == [8]
    router.check_invariants()
    assert len(made) == 2


def test_by_name_shapes_of_one_table_list_the_same_partitions() -> None:
    """A partition belongs to a table, and so to all shapes on it."""
    listed = ShapeDefinition("a", ("public", "events"), partitions=(EVENTS_P0.table,))
    router = EventRouter([listed, replace(listed, id="b")])
    with pytest.raises(ShapeError, match=r"'c' lists other partitions than another shape on public\.events"):
        router.add_shape(replace(listed, id="c", partitions=()))
    with pytest.raises(ValueError, match="'a' has no table_oid"):
        EventRouter([listed], by_oid=True)


def test_a_row_without_an_outcome_is_an_error_of_the_one_shape() -> None:
    """A where that divides by zero ends its shape; the row is neither in the shape nor silently left out."""
    router = EventRouter([users("ratios", where="10 / id > 1"), users("users")])
    (fragment,) = transaction([insert(0)])
    with pytest.raises(DecodeError, match=r"'ratios'.*public\.users.*a division by zero") as raised:
        router.route(fragment)
    assert raised.value.shape_id == "ratios"
    router.remove_shape("ratios")
    assert [part.shape_id for part in router.route(fragment)] == ["users"]


def test_a_part_that_cannot_be_delivered_leaves_the_router_as_it_was() -> None:
    """The caller's check sees each part first; without the shape, the fragment is routed again, and the commit too."""

    def check(part: RoutedFragment) -> None:
        if part.shape_id == "large":
            raise ShapeError(part.shape_id)

    router = EventRouter([users("large"), users("users")])
    first, last = transaction([insert(1), insert(2)], sizes=[1])
    with pytest.raises(ShapeError, match="large"):
        router.route(first, check=check)
    router.remove_shape("large")
    router.check_invariants()
    assert [part.shape_id for part in router.route(first, check=check)] == ["users"]
    assert [part.shape_id for part in router.route(last, check=check)] == ["users"]
