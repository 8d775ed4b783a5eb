"""A shape's items as Debezium's records: operations, images of rows, keys, tombstones, ``source``."""

import json
from dataclasses import replace
from typing import Any

import pytest

from flushtracker.errors import ConfigError
from flushtracker.events.snapshot_events import SnapshotRow
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.sinks.debezium_records import DebeziumRecords, SinkRecord
from flushtracker.wal.changes import Commit, LogItem, Operation, Row
from flushtracker.wal.log_offset import LogOffset

COLUMNS = (("id", 23), ("note", 25), ("at", 1114))
TABLE = TableBinding(
    16_400,
    ("public", "orders"),
    (KeyBinding(16_401, ("id",), 1, 1, 1, is_primary=True),),
    tuple(ColumnBinding(number, name, oid, -1, 1) for number, (name, oid) in enumerate(COLUMNS, 1)),
)
SHAPE = ShapeDefinition("orders", TABLE.table, replica="full", writer="kafka")
RECORDS = DebeziumRecords(SHAPE, TABLE, name="app", database="shop")
NOW_MS = 1_800_000_000_000


def of(
    operation: Operation, value: Row | None, old_value: Row | None = None, *, commit: bool = True
) -> list[SinkRecord]:
    item = LogItem(LogOffset(900, 4), operation, "k" if value else None, value, old_value)
    event = ShapeChangesEvent(
        "7301/1/shapes",
        "orders",
        742,
        follows=LogOffset(800, 0),
        last_log_offset=item.offset,
        start=False,
        has_begin=True,
        commit=Commit("2026-01-01T00:00:00.123456Z", 950) if commit else None,
        items=(item,),
    )
    return list(RECORDS.of_changes(event, item, NOW_MS))


def envelope(record: SinkRecord) -> Any:
    assert record.value is not None
    return json.loads(record.value)


def test_insert_is_c_with_the_whole_row() -> None:
    (record,) = of("insert", {"id": "7", "note": None, "at": "1970-01-01 00:00:01"})
    assert record.key == b'{"id":7}'
    assert envelope(record) == {
        "before": None,
        "after": {"id": 7, "note": None, "at": 1_000_000},
        "source": {
            "version": "flushtracker",
            "connector": "postgresql",
            "name": "app",
            "db": "shop",
            "ts_ms": 1_767_225_600_123,
            "ts_us": 1_767_225_600_123_456,
            "ts_ns": 1_767_225_600_123_456_000,
            "snapshot": "false",
            "sequence": '["900","4"]',
            "schema": "public",
            "table": "orders",
            "txId": 742,
            "lsn": 900,
            "xmin": None,
            "origin": None,
            "origin_lsn": None,
        },
        "transaction": None,
        "op": "c",
        "ts_ms": NOW_MS,
        "ts_us": NOW_MS * 1_000,
        "ts_ns": NOW_MS * 1_000_000,
    }
    assert record.headers == [("flushtracker.offset", b'{"tx_offset":900,"op_offset":4}')]


def test_update_has_the_old_row_if_the_server_sent_it() -> None:
    (record,) = of("update", {"id": "7", "note": "new", "at": None}, {"note": "old"})
    assert envelope(record)["op"] == "u"
    assert envelope(record)["before"] == {"id": 7, "note": "old", "at": None}
    assert envelope(record)["after"] == {"id": 7, "note": "new", "at": None}
    (record,) = of("update", {"id": "7", "note": "same", "at": None}, {})
    assert envelope(record)["before"] == envelope(record)["after"]
    (record,) = of("update", {"id": "7", "note": "new", "at": None})
    assert envelope(record)["before"] is None


def test_update_has_no_old_values_that_are_not_in_the_replica_identity() -> None:
    """As with USING INDEX: which of them have changed is unknown."""
    row: Row = {"id": "7", "note": "new", "at": "1970-01-01 00:00:01"}
    (record,) = of("update", row, {"id": "7", "note": "old"})
    assert envelope(record)["before"] == {"id": 7, "note": "old", "at": None}
    assert envelope(record)["after"] == {"id": 7, "note": "new", "at": 1_000_000}


def test_large_value_that_has_not_changed_has_the_placeholder() -> None:
    (record,) = of("update", {"id": "7", "at": None})
    assert envelope(record)["after"]["note"] == "__debezium_unavailable_value"
    (record,) = of("update", {"id": "7", "at": None}, {"at": "1970-01-01 00:00:01"})
    assert envelope(record)["before"] == {"id": 7, "note": "__debezium_unavailable_value", "at": 1_000_000}


def test_delete_is_d_with_a_tombstone() -> None:
    record, tombstone = of("delete", {"id": "7"})
    assert envelope(record)["op"] == "d"
    assert envelope(record)["before"] == {"id": 7, "note": None, "at": None}
    assert envelope(record)["after"] is None
    assert (tombstone.key, tombstone.value) == (record.key, None)
    assert tombstone.headers == record.headers


def test_schemas_are_those_of_connect() -> None:
    """Before the same payload; a tombstone has none. All columns but those of the key are optional."""
    records = DebeziumRecords(SHAPE, TABLE, name="app", database="shop", has_schemas=True)
    row = {"id": "7", "note": "a", "at": None}
    with_schema = records.of_snapshot(SnapshotRow("k", row), 850, NOW_MS)
    plain = RECORDS.of_snapshot(SnapshotRow("k", row), 850, NOW_MS)
    assert json.loads(with_schema.key or b"") == {
        "schema": {
            "type": "struct",
            "fields": [{"type": "int32", "optional": False, "field": "id"}],
            "optional": False,
            "name": "app.public.orders.Key",
        },
        "payload": {"id": 7},
    }
    found = envelope(with_schema)
    assert found["payload"] == envelope(plain)
    schema = found["schema"]
    assert (schema["type"], schema["name"], schema["version"]) == ("struct", "app.public.orders.Envelope", 2)
    before, after, source, transaction, *others = schema["fields"]
    assert (before["field"], after["field"], source["field"]) == ("before", "after", "source")
    assert {**before, "field": "after"} == after
    assert after == {
        "type": "struct",
        "fields": [
            {"type": "int32", "optional": False, "field": "id"},
            {"type": "string", "optional": True, "field": "note"},
            {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1, "optional": True, "field": "at"},
        ],
        "optional": True,
        "name": "app.public.orders.Value",
        "field": "after",
    }
    assert source["name"] == "io.debezium.connector.postgresql.Source"
    assert [field["field"] for field in source["fields"]] == list(found["payload"]["source"])
    assert (transaction["field"], transaction["optional"]) == ("transaction", True)
    assert [field["field"] for field in others] == ["op", "ts_ms", "ts_us", "ts_ns"]


@pytest.mark.parametrize("operation", ["truncate", "truncate_partition"])
def test_truncate_is_t_without_a_key(operation: Operation) -> None:
    (record,) = of(operation, None)
    assert record.key is None
    assert (envelope(record)["op"], envelope(record)["before"], envelope(record)["after"]) == ("t", None, None)


def test_time_of_a_commit_that_is_not_known_yet_is_null() -> None:
    (record,) = of("insert", {"id": "7", "note": None, "at": None}, commit=False)
    assert envelope(record)["source"]["ts_ms"] is None
    assert envelope(record)["source"]["txId"] == 742


def test_row_of_a_snapshot_is_r_without_an_offset() -> None:
    record = RECORDS.of_snapshot(SnapshotRow("k", {"id": "7", "note": "a", "at": None}), 850, NOW_MS)
    assert record.key == b'{"id":7}'
    assert record.headers == []
    found = envelope(record)
    assert (found["op"], found["before"], found["after"]) == ("r", None, {"id": 7, "note": "a", "at": None})
    assert (found["source"]["snapshot"], found["source"]["lsn"], found["source"]["txId"]) == ("true", 850, None)
    assert found["source"]["ts_ms"] == NOW_MS


def test_chosen_columns_are_sent_with_the_key() -> None:
    records = DebeziumRecords(replace(SHAPE, columns=("note",)), TABLE, name="app", database="shop")
    record = records.of_snapshot(SnapshotRow("k", {"id": "7", "note": "a"}), 850, NOW_MS)
    assert envelope(record)["after"] == {"id": 7, "note": "a"}


def test_column_that_the_registry_did_not_have_is_noticed() -> None:
    item = LogItem(LogOffset(900, 4), "insert", "k", {"id": "7", "note": None, "at": None, "later": "x"}, None)
    assert not RECORDS.knows(item)
    assert RECORDS.knows(LogItem(LogOffset(900, 4), "truncate", None, None, None))


def test_shape_without_whole_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="shape 'orders' has replica: default, but a Kafka sink needs replica: full"):
        DebeziumRecords(replace(SHAPE, replica="default"), TABLE, name="app", database="shop")


def test_shape_with_subqueries_is_refused() -> None:
    inner = (InnerTable(("public", "projects"), 16_500, ("id",)),)
    with pytest.raises(ConfigError, match="shape 'orders' has subqueries, which a Kafka sink cannot have"):
        DebeziumRecords(replace(SHAPE, inner_tables=inner), TABLE, name="app", database="shop")
