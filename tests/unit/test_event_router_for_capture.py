"""What capture needs from the router beyond routing: start offsets, new partitions, and errors that name a shape."""

import pytest

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.wal.changes import Insert, Truncate
from tests.support.tables import EVENTS_P0, EVENTS_P1, LSN, USERS, at, transaction


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
    router = EventRouter([ShapeDefinition("events", ("public", "events"), partitions=(EVENTS_P0.table,))])
    row = {"id": "1", "day": "2", "body": "x"}
    (before,) = transaction([Insert(EVENTS_P1, at(0), row)], LSN)
    assert router.route(before) == ()
    router.set_partitions("events", [EVENTS_P0.table, EVENTS_P1.table])
    router.check_invariants()
    (after,) = transaction([Insert(EVENTS_P1, at(0), row)], LSN + 100)
    assert [part.shape_id for part in router.route(after)] == ["events"]
    (emptied,) = transaction([Truncate(EVENTS_P0, at(0)), Truncate(EVENTS_P1, at(0))], LSN + 200)
    assert [item.operation for part in router.route(emptied) for item in part.items] == ["truncate"]
    with pytest.raises(ShapeError, match="'orders' cannot be given partitions: it was never added"):
        router.set_partitions("orders", [])


def test_a_row_without_an_outcome_is_an_error_of_the_one_shape() -> None:
    """A where that divides by zero ends its shape; the row is neither in the shape nor silently left out."""
    router = EventRouter([users("ratios", where="10 / id > 1"), users("users")])
    (fragment,) = transaction([insert(0)])
    with pytest.raises(DecodeError, match=r"'ratios'.*public\.users.*a division by zero") as raised:
        router.route(fragment)
    assert raised.value.shape_id == "ratios"
    router.remove_shape("ratios")
    assert [part.shape_id for part in router.route(fragment)] == ["users"]


def test_an_error_about_one_shape_names_it_and_the_others_continue_without_it() -> None:
    """Once the shape is removed, the fragment that failed is routed to the others."""
    router = EventRouter([users("broken", where="nickname = 'x'"), users("users")])
    (fragment,) = transaction([insert(1)])
    with pytest.raises(ShapeError) as raised:
        router.route(fragment)
    assert raised.value.shape_id == "broken"
    router.remove_shape("broken")
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
