"""Shapes whose keys have partitions: each row says where it is, so a TRUNCATE of one partition can be followed."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import DecodeError
from flushtracker.shape_log.fold import Item, fold
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.item_key import key_values, partition_of, partition_prefix
from flushtracker.shapes.log_items import log_items as make_items
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.shapes.shape import Shape
from flushtracker.wal.changes import Change, Delete, Insert, LogItem, Relation, Row, Truncate, Update
from tests.support.fold import fold_items
from tests.support.tables import EVENTS_P0, EVENTS_P1, LSN, at, transaction

EVENTS_P2 = replace(EVENTS_P1, relation_id=EVENTS_P1.relation_id + 7, name="events_p2")
PARTITIONS = (EVENTS_P0, EVENTS_P1, EVENTS_P2)
EVENTS = ShapeDefinition(
    "events",
    ("public", "events"),
    primary_key=("id", "day"),
    partitions=tuple(each.table for each in PARTITIONS),
    keys_have_partitions=True,
)
LATE = replace(EVENTS, id="late", where="day > 1")

Rows = tuple[LogItem, ...]


def prefix(partition: Relation) -> str:
    return partition_prefix(EVENTS.table, partition.relation_id)


def row(key: int, day: int, body: str | None = None) -> dict[str, str | None]:
    return {"id": str(key), "day": str(day), "body": body}


def insert(partition: Relation, key: int, day: int) -> Insert:
    return Insert(partition, at(0), row(key, day))


def routed(changes: list[Change], *definitions: ShapeDefinition, sizes: list[int] | None = None) -> dict[str, Rows]:
    """Each shape's items of one transaction."""
    router, found = EventRouter(definitions), dict[str, Rows]()
    for fragment in transaction(changes, LSN, sizes or []):
        parts: tuple[RoutedFragment, ...] = router.route(fragment)
        for part in parts:
            found[part.shape_id] = (*found.get(part.shape_id, ()), *part.items)
    return found


def log_items(items: Rows) -> Iterator[Item]:
    """The items as the shape log has them."""
    for item in items:
        yield item.operation, item.key, None if item.value is None else json.dumps(item.value)


def test_a_truncate_of_one_partition_is_an_item_that_names_it() -> None:
    """For every shape on the root, also one with no row there; a shape on the partition itself is truncated."""
    leaf = ShapeDefinition("leaf", EVENTS_P0.table)
    changes: list[Change] = [insert(EVENTS_P0, 1, 1), insert(EVENTS_P1, 2, 2), Truncate(EVENTS_P0, at(0))]
    found = routed(changes, EVENTS, LATE, leaf)
    truncate = LogItem(at(4), "truncate_partition", '"public"."events"/' + str(EVENTS_P0.relation_id))
    assert found["events"][-1] == found["late"][-1] == truncate
    assert found["leaf"][-1] == LogItem(at(4), "truncate")
    second = prefix(EVENTS_P1) + '/"2"/"2"'
    assert fold(log_items(found["events"])) == fold(log_items(found["late"])) == {second: row(2, 2)}


def test_a_shape_bound_to_one_partition_makes_the_keys_of_all_with_the_same_columns() -> None:
    """Binding costs more than a change, and a table may have thousands of partitions."""
    bound = Shape(EVENTS).bind(EVENTS_P0)
    assert [item.key for item in make_items(bound, insert(EVENTS_P1, 1, 1))] == [prefix(EVENTS_P1) + '/"1"/"1"']
    assert [item.key for item in make_items(bound, Truncate(EVENTS_P2, at(0)))] == [prefix(EVENTS_P2)]


def test_one_partition_is_not_taken_for_another() -> None:
    """Whose OID, or whose table's name, begins with the same characters."""
    tables = [("public", "t"), ("public", 't"/7/"'), ("pub/7/lic", "t"), ("public", "t/7")]
    prefixes = [partition_prefix(table, oid) for table in tables for oid in (7, 77)]
    values: list[list[str | None]] = [["7"], ["7", None], ['"/7/"'], [None]]
    items: list[Item] = [("insert", each + key_values(key), '{"a":"b"}') for each in prefixes for key in values]
    for each in prefixes:
        assert all(partition_of(each + key_values(key)) == each for key in values)
        left = fold([*items, ("truncate_partition", each, None)])
        assert len(left) == len(items) - len(values)
    assert partition_of('"public"."t"/"7"/"8"') is None
    with pytest.raises(DecodeError, match="truncate_partition without a key"):
        fold([("truncate_partition", None, None)])


_ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "move", "delete", "truncate", "truncate all"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=30,
)


@given(actions=_ACTIONS, sizes=st.lists(st.integers(1, 4), max_size=6))
def test_folding_gives_the_rows_of_a_partitioned_table(
    actions: list[tuple[str, int, int, int, int]], sizes: list[int]
) -> None:
    """The oracle: the partitions' own rows. Two folds agree: that of the shape log, and the tests' own."""
    tables: list[dict[tuple[int, int], Row]] = [{}, {}, {}]
    changes: list[Change] = []
    for number, (action, key, day, here, there) in enumerate(actions):
        relation, rows, name = PARTITIONS[here], tables[here], (key, day)
        identity, value = {"id": str(key), "day": str(day)}, row(key, day, str(number))
        if action.startswith("truncate"):
            for emptied in (0, 1, 2) if action == "truncate all" else (here,):
                changes.append(Truncate(PARTITIONS[emptied], at(0)))
                tables[emptied].clear()
        elif action == "write":
            changes.append(Update(relation, at(0), None, value) if name in rows else Insert(relation, at(0), value))
            rows[name] = value
        elif name in rows:
            changes.append(Delete(relation, at(0), identity))
            moved = rows.pop(name)
            if action == "move" and here != there and name not in tables[there]:
                changes.append(Insert(PARTITIONS[there], at(0), moved))
                tables[there][name] = moved
    found = routed(changes, EVENTS, LATE, sizes=sizes) if changes else {}
    for definition, least_day in ((EVENTS, 0), (LATE, 2)):
        items = found.get(definition.id, ())
        expected = {
            prefix(relation) + key_values([str(key), str(day)]): value
            for relation, rows in zip(PARTITIONS, tables, strict=True)
            for (key, day), value in rows.items()
            if day >= least_day
        }
        assert fold(log_items(items)) == expected
        assert fold_items(items) == {
            key: {name: text for name, text in value.items() if text is not None} for key, value in expected.items()
        }
