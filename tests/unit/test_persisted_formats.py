"""Persisted state of older releases is read unchanged: literal bytes of 0.1.0, which no change may reinterpret."""

import json

from flushtracker.delta import ack_table
from flushtracker.events.registry_events import ShapeEntry, SourceEntry, parse_registry_entry
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.spark.group_state import STATE_SCHEMA
from flushtracker.tracking.flush_tracker import Pending
from flushtracker.tracking.fragment_chain import FragmentChain
from flushtracker.tracking.recovery_plan import PartitionPlan, RecoveryPlan
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.shape_offsets import PendingTxn, ShapeOffsets
from flushtracker.tracking.source_tracker import ChainReport, GroupReport
from flushtracker.wal.log_offset import LogOffset

GROUP = b'\x01[[900,1],{"a":[1234,[900,1],[150,2],[50,3],[[100,200,5,4],[300,300,7,8]]]}]'
CHAIN = b'\x01[[900,9223372036854775807],[900,4],"f 1"]'
REPORT = '{"pending_shapes": 2, "last_sent": [9, 4], "last_flushed": [7, 0], "since_ms": 5, "blocking_shape": "a"}'
SHAPE_ENTRY = (
    '{"v":1,"source":"s","type":"shape","shape_id":"a","definition":{"table":["public","t"],"columns":["id"],'
    '"where":"id > 1","replica":"full","primary_key":["id"],"partitions":[["public","p"]],"depends_on":["b"],'
    '"flush":{"bytes":1,"interval_ms":2,"chunk_bytes":3}},"table_oid":16385,'
    '"starts_after":{"tx_offset":9,"op_offset":0},"removed_at":{"tx_offset":10,"op_offset":0},"ended_because":"gone"}'
)


def test_group_state_is_read_and_written_unchanged() -> None:
    """It has pending transactions, one of them merged, an open one, a flush and a removal."""
    group = ShapeGroup.unpack(GROUP)
    txns = [
        PendingTxn(100, LogOffset(200, 5), LogOffset(200, 4)),
        PendingTxn(300, LogOffset(300, 7), LogOffset(300, 8)),
    ]
    offsets = ShapeOffsets(txns, LogOffset(900, 1), LogOffset(150, 2), LogOffset(50, 3), since_ms=1234)
    assert (group.cursor, group.shapes) == (LogOffset(900, 1), {"a": offsets})
    assert group.pack() == GROUP


def test_chain_state_is_read_and_written_unchanged() -> None:
    """Both after a commit and before the first fragment."""
    chain = FragmentChain.unpack("s", CHAIN)
    assert (chain.stream_cursor, chain.last_seen_offset) == (LogOffset.last_of(900), LogOffset(900, 4))
    assert chain.place == "f 1"
    assert chain.pack() == CHAIN
    assert FragmentChain("s").pack() == b'\x01[null,null,""]'


def test_reports_in_the_state_are_read_and_written_unchanged() -> None:
    """A starting driver rebuilds its trackers from them."""
    pending = Pending(LogOffset(9, 4), LogOffset(7, 0), since_ms=5)
    assert GroupReport.from_json(REPORT) == GroupReport(2, pending, "a")
    assert GroupReport(2, pending, "a").to_json() == REPORT
    assert GroupReport.from_json("{}") == GroupReport()
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
    definition = ShapeDefinition(
        "a", ("public", "t"), ("id",), "id > 1", "full", ("id",), (("public", "p"),), ("b",), FlushPolicy(1, 2, 3)
    )
    entry = ShapeEntry("s", definition, 16385, LogOffset(9, 0), LogOffset(10, 0), "gone")
    assert parse_registry_entry(SHAPE_ENTRY) == entry
    assert entry.to_json() == SHAPE_ENTRY
    source = SourceEntry("s", LogOffset(9, 0))
    assert source.to_json() == '{"v":1,"source":"s","type":"source","starts_after":{"tx_offset":9,"op_offset":0}}'
    assert parse_registry_entry(source.to_json()) == source


def test_ack_table_keeps_its_columns() -> None:
    """Readers use their names; more columns may follow."""
    assert ack_table._FENCING_APP_ID == "flushtracker: owner of this table"
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
