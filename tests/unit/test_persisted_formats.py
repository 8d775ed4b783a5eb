"""Persisted state of older releases is read unchanged: literal bytes, which no change may reinterpret."""

import json
from dataclasses import replace

from flushtracker.delta.acks import app_transactions
from flushtracker.delta.acks import table as ack_table
from flushtracker.events.registry_events import ShapeEntry, SourceEntry, TableEntry, parse_registry_entry
from flushtracker.jobs.track.group_state import STATE_SCHEMA
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.spark.recovery_plan import PartitionPlan, RecoveryPlan
from flushtracker.spark.shape_group import shape_group_of
from flushtracker.tracking.fragment_chain import FragmentChain
from flushtracker.tracking.group_report import GroupReport, PendingShape
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.source_tracker import ChainReport
from flushtracker.wal.log_offset import LogOffset
from tests.support.group_view import ShapeView, shapes_of

GROUP = bytes.fromhex(
    "03 8403000000000000 0100000000000000"  # version and cursor
    "01000000 01000000 61"  # the ids
    "01000000 8403000000000000 00 0100000000000000 00 9600000000000000 00 0200000000000000 00"  # open, flushed
    "3200000000000000 00 0300000000000000 00 d204000000000000 00"  # removed, since
    "01000000 0200000000000000 00"  # the numbers of pending transactions
    "02000000 c800000000000000 01 0064 0000000000000000 01 6400 0500000000000000 01 0002 0400000000000000 01 0004"
    "00000000"  # no shape has many
)
EMPTY_GROUP = bytes.fromhex("03 6300000000000000 0000000000000000" + 6 * "00000000")
GROUPS = [9, 14, 8]
CHAIN = b'\x01[[900,9223372036854775807],[900,4],"f 1"]'
REPORT = '{"pending_shapes": 2, "last_sent": [9, 4], "holders": [[[7, 0], "a", 5, 2], [[8, 1], "b", 6, 3]]}'
SHAPE_ENTRY = (
    '{"v":1,"source":"s","type":"shape","shape_id":"a","definition":{"table":["public","t"],"columns":["id"],'
    '"where":"id > 1","replica":"full","primary_key":["id"],"partitions":[["public","p"]],"depends_on":["b"],'
    '"flush":{"bytes":1,"interval_ms":2,"chunk_bytes":3},"snapshot":true},"table_oid":16385,'
    '"starts_after":{"tx_offset":9,"op_offset":0},"removed_at":{"tx_offset":10,"op_offset":0},"ended_because":"gone",'
    '"starts_visible":true}'
)
TABLE_ENTRY = (
    '{"v":1,"source":"s","type":"table","table_oid":7,"binding":{"oid":7,"table":["public","t"],"key":["id"],'
    '"key_oid":6,"storage":4,"attributes":1,"schema_since":800,"partitioned":false,"logged":true,"children":false,'
    '"filtered":false,"published_by":["all tables"],"columns":[{"number":1,"name":"id","type_oid":16400,'
    '"type_modifier":-1,"version":9,"fills_old_rows":false}],"partitions":[{"oid":8,"table":["public","p"],"storage":5,'
    '"attached":"/9","schema_since":801,"logged":true,"filtered":false,"published_by":["table 8"]}],"types":[{'
    '"oid":16400,"schema":"public","name":"mood","kind":"enum","parts":[],"attributes":0,"labels":[{"oid":1,"text":'
    '"ok","version":9}]}]}}'
)


def test_group_state_is_read_and_written_unchanged() -> None:
    """It has pending transactions, one of them merged, an open one, a flush and a removal."""
    group = ShapeGroup.unpack(GROUP)
    view = ShapeView(1234, (900, 1), (150, 2), (50, 3), [[100, 200, 5, 4], [300, 300, 7, 8]])
    assert (group.cursor, shapes_of(group)) == (LogOffset(900, 1), {"a": view})
    assert group.pack() == GROUP
    assert ShapeGroup(LogOffset(99, 0)).pack() == EMPTY_GROUP


def test_a_shape_stays_in_its_group() -> None:
    """With another one, what is pending would be looked for where it is not."""
    assert [shape_group_of(shape_id, 16) for shape_id in ("users", "orders", "naïve 🙂")] == GROUPS


def test_chain_state_is_read_and_written_unchanged() -> None:
    """Both after a commit and before the first fragment."""
    chain = FragmentChain.unpack("s", CHAIN)
    assert (chain.stream_cursor, chain.last_seen_offset) == (LogOffset.last_of(900), LogOffset(900, 4))
    assert chain.place == "f 1"
    assert chain.pack() == CHAIN
    assert FragmentChain("s").pack() == b'\x01[null,null,""]'


def test_reports_in_the_state_are_read_and_written_unchanged() -> None:
    """A starting driver rebuilds its trackers from them."""
    holders = (PendingShape(LogOffset(7, 0), "a", 5, 2), PendingShape(LogOffset(8, 1), "b", 6, 3))
    assert GroupReport.from_json(REPORT) == GroupReport(2, LogOffset(9, 4), holders)
    assert GroupReport(2, LogOffset(9, 4), holders).to_json() == REPORT
    assert GroupReport.from_json("{}") == GroupReport()
    assert GroupReport().to_json() == "{}"
    assert ChainReport.from_json('{"last_seen_offset": null}') == ChainReport(None)
    assert ChainReport(LogOffset(9, 4)).to_json() == '{"last_seen_offset": [9, 4]}'


def test_state_store_keeps_its_columns() -> None:
    """Spark refuses a checkpoint whose state has other columns."""
    assert STATE_SCHEMA.simpleString() == "struct<packed:binary,report:string,shape_groups:bigint>"


def test_recovery_plan_in_a_checkpoint_is_read() -> None:
    """It remains in the checkpoint permanently."""
    written = {"0": {"end": 7, "sources": {"s": 3}}}
    plan = RecoveryPlan({0: PartitionPlan(7, {"s": 3})})
    assert RecoveryPlan.from_json(written) == plan
    assert json.loads(json.dumps(plan.to_json())) == written


def test_registry_entries_are_read_and_written_unchanged() -> None:
    """They outlive every process."""
    names = ("public", "t"), ("public", "p")
    flush = FlushPolicy(1, 2, 3)
    definition = ShapeDefinition(
        "a", names[0], ("id",), "id > 1", "full", ("id",), names[1:], ("b",), flush, snapshot=True
    )
    entry = ShapeEntry("s", definition, 16385, LogOffset(9, 0), LogOffset(10, 0), "gone", starts_visible=True)
    assert parse_registry_entry(SHAPE_ENTRY) == entry
    assert entry.to_json() == SHAPE_ENTRY
    source = SourceEntry("s", LogOffset(9, 0), "7.1")
    assert source.to_json() == (
        '{"v":1,"source":"s","type":"source","starts_after":{"tx_offset":9,"op_offset":0},"publication":"7.1"}'
    )
    assert parse_registry_entry(source.to_json()) == source


def test_table_entry_is_read_and_written_unchanged() -> None:
    """It decides whether a shape survives a schema change, also one made while capture was down."""
    column = ColumnBinding(1, "id", 16_400, -1, 9)
    mood = TypeBinding(16_400, "public", "mood", "enum", labels=(EnumLabel(1, "ok", 9),))
    partition = PartitionBinding(8, ("public", "p"), 5, "/9", 801, published_by=("table 8",))
    bound = TableBinding(7, ("public", "t"), ("id",), (column,), (partition,), 6, 4, 1, 800, types=(mood,))
    entry = TableEntry("s", replace(bound, published_by=("all tables",)))
    assert parse_registry_entry(TABLE_ENTRY) == entry
    assert entry.to_json() == TABLE_ENTRY


def test_ack_table_keeps_its_columns() -> None:
    """Readers use their names; more columns may follow."""
    assert app_transactions.FENCING_APP_ID == "flushtracker: owner of this table"
    assert ack_table.SCHEMA.names == [
        "source",
        "batch_id",
        "ack_lsn",
        "ack_lsn_text",
        "last_seen_lsn",
        "pending_shapes",
        "blocking_shape",
        "blocking_since",
        "acked_at",
    ]
