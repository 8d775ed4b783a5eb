"""Persisted state of older releases is read unchanged: literal bytes, which no change may reinterpret."""

import json
from dataclasses import replace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from flushtracker.delta import owned_table, registry_rows
from flushtracker.delta.fence import FENCING_APP_ID
from flushtracker.delta.registry_table import FOLDED_APP_ID
from flushtracker.errors import DecodeError, StateError
from flushtracker.events.records import record_of
from flushtracker.events.registry_events import (
    PartitionEntry,
    ShapeEntry,
    SourceEntry,
    TableEntry,
    parse_registry_entry,
)
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.serve.handle import ClientOffset, Handle
from flushtracker.serve.seen_shape import ShapeFacts
from flushtracker.shape_log.log_row import COMMIT, LogRow
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.shape_writer import LogEnd
from flushtracker.shape_log.table import claim, cut_log, snapshots, upkeep
from flushtracker.shape_log.table import columns as log_columns
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.write import log_ends
from flushtracker.shape_log.write.group_state import STATE_SCHEMA as WRITE_STATE_SCHEMA
from flushtracker.shape_log.writer_group import Durable, WriterGroup, WriterSettings
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.sinks.stored_feed import StoredFeed, StoredMark, StoredPositions, read_feed, read_positions
from flushtracker.spark import checkpoint_origin
from flushtracker.spark.committed_state import Remedies
from flushtracker.spark.recovery_plan import PartitionPlan, RecoveryPlan
from flushtracker.spark.shape_grouping import shape_group_of
from flushtracker.tracking.acks import ack_table
from flushtracker.tracking.fragment_chain import FragmentChain, check_chain_version
from flushtracker.tracking.group_report import GroupReport, PendingShape
from flushtracker.tracking.job.group_state import STATE_SCHEMA
from flushtracker.tracking.shape_group import ShapeGroup, check_group_version
from flushtracker.tracking.source_tracker import ChainReport
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from flushtracker.wal.shape_list import listed_at
from flushtracker.wal.timeline_history import TimelineHistory
from tests.support.group_view import ShapeView, shapes_of
from tests.support.plain_writer import CheckedGroup
from tests.support.sample_entries import SHAPE_ENTRY

GROUP = bytes.fromhex(
    "01 8403000000000000 0100000000000000"  # version and cursor
    "01000000 01000000 61"  # the ids
    "01000000 8403000000000000 00 0100000000000000 00 9600000000000000 00 0200000000000000 00"  # open, flushed
    "3200000000000000 00 0300000000000000 00 d204000000000000 00"  # removed, since
    "01000000 0200000000000000 00"  # the numbers of pending transactions
    "02000000 c800000000000000 01 0064 0000000000000000 01 6400 0500000000000000 01 0002 0400000000000000 01 0004"
    "00000000"  # no shape has many
)
EMPTY_GROUP = bytes.fromhex("01 6300000000000000 0000000000000000" + 6 * "00000000")
# Shape a has 33 transactions, which are packed apart, the first of them merged, and two after them; shape b has one.
STALLED_GROUP = bytes.fromhex(
    "01 844e000000000000 ffffffffffffff7f"  # version and cursor
    "02000000 03000000 61 00 62"  # the ids
    "02000000 feffffffffffffff 00 0000000000000000 00 feffffffffffffff 00 0000000000000000 00"  # open, flushed
    "feffffffffffffff 00 0000000000000000 00 0700000000000000 01 00 01"  # removed, since
    "02000000 0100000000000000 01 01 00"  # the numbers of pending transactions that are not packed apart: 2 and 1
    "03000000 204e000000000000 01 00 64 00 0000000000000000 00 0200000000000000 01 03 03 00 0400000000000000 00"
    # The queues: the shape, the four heads, and the size in bytes, of one.
    "01000000 0000000000000000 00 6400000000000000 00 6829000000000000 00 0400000000000000 00 2100000000000000 00"
    "ac00000000000000 00"
    # The queue: commit LSNs of 1000 to 10600, each 300 after the one before; the first is merged with that at 100.
    "21000000 e803000000000000 02 0000 2c01 5802 8403 b004 dc05 0807 3408 6009 8c0a b80b e40c 100e 3c0f 6810 9411 c012"
    "ec13 1815 4416 7017 9c18 c819 f41a 201c 4c1d 781e a41f d020 fc21 2823 5424 8025"
    "0000000000000000 02 8403 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000"
    "0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0300000000000000 00 0400000000000000 00"
)
GROUPS = [9, 14, 8]
CHAIN = b'\x01[[900,9223372036854775807],[900,4],"f 1"]'
CHAIN_WITH_GAP = b'\x01[[900,9223372036854775807],[900,4],"f 1",null,"no 0/4B0"]'
CHAIN_IN_LIST = b'\x01[[950,288230376151711751],[900,4],"f 2",[950,2]]'
REPORT = (
    '{"pending_shapes": 2, "last_sent": [9, 4], "holders": [[[7, 0], "a", 5, 2, "log"], [[8, 1], "b", 6, 3, "own"]]}'
)
# Shape ü holds back what it has of two transactions, the second of them open; shape gone has been removed.
_HELD = (
    "[[1100,2],[[1000,9223372036854775807],[1000,9223372036854775807],[-1,0],[-1,0]],[0,26],[1000,200,30],0,"
    '[[[1100,2],"update","\\"k\\"/\\"1\\"",{"id":"1"},{"n":"\\u00e9"}]],'
    '[[1000,0,"insert","\\"k\\"/\\"1\\"","{\\"id\\":\\"1\\",\\"n\\":null}",null,7,null,0],'
    '[1000,9223372036854775807,"commit",null,null,null,7,"2026-01-02T03:04:05.678901Z",0]],5000]'
)
_REMOVED = "[null,[[-1,0],[-1,0],[-1,0],[-1,0]],[0,0],[1000,200,30],1]"
WRITERS = (
    bytes.fromhex("01 02000000")  # version, and the number of shapes; of each the sizes, the id, and the record
    + (bytes.fromhex("02000000 4c010000 c3bc 01") + _HELD.encode())
    + (bytes.fromhex("04000000 3b000000") + b"gone" + b"\0" + _REMOVED.encode())
)
ORIGIN = b"""{
 "version": 1,
 "streams": {
  "format": "kafka",
  "fragments": "f (id)"
 },
 "starts": {
  "0": {
   "end": 7,
   "sources": {
    "s": 3
   }
  }
 }
}
"""
LOG_ENDS = b'{"claim": 3, "ends": [["s", "a", [9, 4], [8, 9223372036854775807], 2], ["s", "b", [7, 0], [-1, 0], 0]]}'
LOG_COLUMNS = (
    "source:string shape_id:string tx_offset:int64 op_offset:int64 operation:string key:string value:string "
    "old_value:string xid:int64 commit_timestamp:timestamp[us, tz=UTC] chunk:int64 "
    "written_at:timestamp[us, tz=UTC]"
)
REGISTRY_COLUMNS = "source:string type:string id:string entry:string written_at:timestamp[us, tz=UTC]"
REMOVED_SHAPE_ENTRY = (
    '{"type":"removed_shape","v":1,"source":"s","shape_id":"a","removed_at":{"tx_offset":10,"op_offset":0},'
    '"ended_because":"gone"}'
)
TABLE_ENTRY = (
    '{"type":"table","v":1,"source":"s","table_oid":7,"binding":{"oid":7,"table":["public","t"],'
    '"storage":4,"attributes":1,"schema_since":800,"partitioned":false,"logged":true,"children":false,'
    '"filtered":false,"published_by":["all tables"],"columns":[{"number":1,"name":"id","type_oid":16400,'
    '"type_modifier":-1,"version":9,"fills_old_rows":false,"deterministic":true,'
    '"altered_before":150}],"types":['
    '{"oid":16400,"schema":"public","name":"mood","kind":"enum","parts":[],"attributes":0,"labels":[{"oid":1,"text":'
    '"ok","version":9}]}],"keys":[{"oid":6,"columns":["id"],"index":5,"version":9,"storage":3,"primary":true}],'
    '"toast":11}}'
)
PARTITION_ENTRY = (
    '{"type":"partition","v":1,"source":"s","table_oid":7,"binding":{"oid":8,"table":["public","p"],"storage":5,'
    '"attached":"/9","schema_since":801,"logged":true,"filtered":false,"published_by":["table 8"],"toast":12},'
    '"joined":150,"left_at":null}'
)


def test_group_state_is_read_and_written_unchanged() -> None:
    """It has pending transactions, one of them merged, an open one, a flush and a removal."""
    group = ShapeGroup.unpack(GROUP)
    view = ShapeView(1234, (900, 1), (150, 2), (50, 3), [[100, 200, 5, 4], [300, 300, 7, 8]])
    assert (group.cursor, shapes_of(group)) == (LogOffset(900, 1), {"a": view})
    assert group.pack() == GROUP
    assert ShapeGroup(LogOffset(99, 0)).pack() == EMPTY_GROUP


def test_a_group_with_stalled_shapes_is_read_and_written_unchanged() -> None:
    """What a shape with many pending transactions was sent first, and what came after it."""
    group = ShapeGroup.unpack(STALLED_GROUP)
    stalled = [[lsn, lsn, 3, 4] for lsn in range(1000, 10_601, 300)]
    stalled[0][0] = 100
    after = [[20_000, 20_000, 5, 4], [20_100, 20_100, 5, 4]]
    assert group.cursor == LogOffset.last_of(20_100)
    assert shapes_of(group) == {
        "a": ShapeView(7, None, None, None, [*stalled, *after]),
        "b": ShapeView(8, None, None, None, [[20_000, 20_000, 2, 4]]),
    }
    holders = PendingShape(LogOffset(99, 0), "a", 7, 35), PendingShape(LogOffset(19_999, 0), "b", 8, 1)
    assert group.report() == GroupReport(2, LogOffset(20_100, 5), holders)
    assert group.pack() == STALLED_GROUP


def test_the_writers_state_is_read_and_written_unchanged() -> None:
    """What is held back is in no other place: capture is told of it only once it is durable."""
    group = CheckedGroup("s", WriterSettings("txn", hold=True), WRITERS)
    assert group.held_shapes() == ["ü"]
    nothing = LogOffset.before_all()
    assert group.durable() == {
        "ü": Durable(nothing, is_removed=False),
        "gone": Durable(nothing, is_removed=True),
    }
    assert group.pack() == WRITERS
    rows = [
        LogRow(1000, 0, "insert", '"k"/"1"', '{"id":"1","n":null}', None, 7, None, 0),
        LogRow(*LogOffset.last_of(1000), COMMIT, None, None, None, 7, "2026-01-02T03:04:05.678901Z", 0),
    ]
    assert (group.next_due_ms(), group.handle_events([], [], 5199)) == (5200, [])
    (batch,) = group.handle_events([], [], 5200)
    assert (batch.rows, batch.notified) == (rows, LogOffset.last_of(1000))
    event = ShapeChangesEvent(
        *("s", "ü", 8, LogOffset(1100, 2), LogOffset(1100, 4), False, False, Commit("2026-01-02T03:04:06Z", 1))
    )
    # With it, the chunk has the bytes that end it.
    (batch,) = group.handle_events([event], [], 5201)
    assert batch.rows == [LogRow(1100, 2, "update", '"k"/"1"', '{"id":"1"}', '{"n":"é"}', 8, None, 0)]


FORGOTTEN = (
    b"\x01\x02\x00\x00\x00\x00\x00\x00\x00F\x00\x00\x00"
    b"\x00[null,[[-1,0],[-1,0],[-1,0],[-1,0]],[0,0],[65536,1000,10485760],1500]"
    b"\x01\x00\x00\x00F\x00\x00\x00b"
    b"\x00[null,[[-1,0],[-1,0],[-1,0],[-1,0]],[0,0],[65536,1000,10485760],2000]"
)


def test_the_lsn_in_place_of_forgotten_shapes_is_read_and_written_unchanged() -> None:
    """And that at which a shape was removed."""
    group = CheckedGroup("s", WriterSettings(), FORGOTTEN)
    assert (group.forgotten_lsn, group.pack()) == (1500, FORGOTTEN)
    group.handle_events([], [], 0, taken_lsn=1999)
    assert list(group.durable()) == ["b"]
    group.handle_events([], [], 0, taken_lsn=2000)
    assert (group.forgotten_lsn, group.durable()) == (2000, {})


# What development versions wrote.
OLD_GROUP = bytes.fromhex("05 6300000000000000 0000000000000000" + 6 * "00000000")
OLD_WRITERS = b"\x02\x01\0\0\0\x01\0\0\0\xa5\0\0\0a\0[[100,9223372036854775807]"


def test_a_report_without_holders_does_not_pass_for_caught_up() -> None:
    """Its group has sent 100 to a shape that has flushed nothing, and the driver would acknowledge 100."""
    with pytest.raises(StateError, match="has 1 pending shapes and lists none"):
        GroupReport.from_json('{"pending_shapes": 1, "last_sent": [100, 4]}')


def test_state_of_before_the_first_release_is_refused() -> None:
    """Its version is named, and what to do about it."""
    with pytest.raises(StateError, match="has version 05, this job reads version 01; use the release"):
        check_group_version(OLD_GROUP)
    with pytest.raises(StateError, match="has version 02, this job reads version 01; use the release"):
        WriterGroup("s", WriterSettings(), OLD_WRITERS)


class _Folder:
    """The calls on ``HadoopFiles`` of what a checkpoint keeps in files."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def names(self) -> list[str]:
        return list(self.files)

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def write(self, name: str, content: bytes) -> bool:
        self.files[name] = content
        return True


def test_files_of_a_checkpoint_are_read_and_written_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which streams it was made for, and where logs end that the state does not know of."""
    folder, spark = _Folder(), cast("SparkSession", None)
    for module in (checkpoint_origin, log_ends):
        monkeypatch.setattr(module, "HadoopFiles", lambda *_: folder)
    origin = checkpoint_origin.CheckpointOrigin(spark, "c", Remedies("", ""))
    streams, plan = {"format": "kafka", "fragments": "f (id)"}, RecoveryPlan({0: PartitionPlan(7, {"s": 3})})
    origin.replace(streams, plan)
    assert origin.open(streams) == plan
    kept = log_ends.StoredEnds(spark, "c")
    ends = {
        ("s", "b"): LogEnd(LogOffset(7, 0), LogOffset.before_all(), 0),
        ("s", "a"): LogEnd(LogOffset(9, 4), LogOffset.last_of(8), 2),
    }
    kept.write(3, ends)
    assert kept.read() == (3, ends)
    assert folder.files == {"flushtracker.json": ORIGIN, "log_ends.json": LOG_ENDS}


def test_a_shape_stays_in_its_group() -> None:
    """With another one, what is pending would be looked for where it is not."""
    assert [shape_group_of(shape_id, 16) for shape_id in ("users", "orders", "naïve 🙂")] == GROUPS


def test_a_shape_keeps_its_place_in_a_list() -> None:
    """A resend by another release would otherwise list other shapes up to an offset than the tracker has seen."""
    listed = [listed_at(shape_id) for shape_id in ("users", "orders", "naïve 🙂")]
    assert listed == [288230376495883753, 288230379996839406, 288230377770436600]


def test_chain_state_is_read_and_written_unchanged() -> None:
    """After a commit, before the first fragment, and between the parts of a list."""
    chain = FragmentChain.unpack("s", CHAIN)
    assert (chain.stream_cursor, chain.last_seen_offset) == (LogOffset.last_of(900), LogOffset(900, 4))
    assert chain.place == "f 1"
    assert chain.pack() == CHAIN
    assert FragmentChain("s").pack() == b'\x01[null,null,""]'
    listed = FragmentChain.unpack("s", CHAIN_IN_LIST)
    assert (listed.stream_cursor, listed.operations) == (LogOffset(950, 2**58 + 7), LogOffset(950, 2))
    assert listed.pack() == CHAIN_IN_LIST
    broken = FragmentChain.unpack("s", CHAIN_WITH_GAP)
    assert (broken.stream_cursor, broken.operations, broken.gap) == (LogOffset.last_of(900), None, "no 0/4B0")
    assert broken.pack() == CHAIN_WITH_GAP
    check_chain_version(CHAIN)
    with pytest.raises(StateError, match="has version 02, this job reads version 01"):
        check_chain_version(b"\x02" + CHAIN[1:])


def test_reports_in_the_state_are_read_and_written_unchanged() -> None:
    """A starting driver rebuilds its trackers from them."""
    holders = (PendingShape(LogOffset(7, 0), "a", 5, 2), PendingShape(LogOffset(8, 1), "b", 6, 3, "own"))
    assert GroupReport.from_json(REPORT) == GroupReport(2, LogOffset(9, 4), holders)
    assert GroupReport(2, LogOffset(9, 4), holders).to_json() == REPORT
    assert GroupReport.from_json("{}") == GroupReport()
    assert GroupReport().to_json() == "{}"
    assert ChainReport.from_json('{"last_seen_offset": null}') == ChainReport(None)
    assert ChainReport(LogOffset(9, 4)).to_json() == '{"last_seen_offset": [9, 4]}'
    assert ChainReport(None, "no 0/4B0").to_json() == '{"last_seen_offset": null, "gap": "no 0/4B0"}'
    assert ChainReport.from_json('{"last_seen_offset": null, "gap": "no 0/4B0"}') == ChainReport(None, "no 0/4B0")


def test_state_store_keeps_its_columns() -> None:
    """Spark refuses a checkpoint whose state has other columns."""
    assert STATE_SCHEMA.simpleString() == "struct<packed:binary,report:string,shape_groups:bigint>"
    assert WRITE_STATE_SCHEMA.simpleString() == "struct<packed:binary,shape_groups:bigint>"


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
        '{"type":"source","v":1,"source":"s","starts_after":{"tx_offset":9,"op_offset":0},"publication":"7.1",'
        '"routing":1}'
    )
    assert parse_registry_entry(source.to_json()) == source
    later = source.to_json().replace('"routing":1', '"routing":2')
    assert parse_registry_entry(later) == replace(source, routing=2)
    claimed = later[:-1] + (
        ',"history":{"timeline":2,"switches":[{"timeline":1,"lsn":50331976}]},"holder":"5f0c","published_lsn":50331900,"ends":{"fragments":[7],"shape_changes":[3,4]}}'
    )
    history = TimelineHistory(2, ((1, 50331976),))
    claimed_entry = replace(source, routing=2, history=history, holder="5f0c", published_lsn=50331900)
    claimed_entry = replace(claimed_entry, ends=((7,), (3, 4)))
    assert (parse_registry_entry(claimed), claimed_entry.to_json()) == (claimed_entry, claimed)
    taken = (
        claimed[:-1]
        + ',"claimed":{"timeline":3,"switches":[{"timeline":1,"lsn":50331976},{"timeline":2,"lsn":50332000}]}}'
    )
    taken_entry = replace(claimed_entry, claimed=TimelineHistory(3, ((1, 50331976), (2, 50332000))))
    assert (parse_registry_entry(taken), taken_entry.to_json()) == (taken_entry, taken)
    upgraded, upgraded_entry = taken[:-1] + ',"system_id":"7302"}', replace(taken_entry, system_id="7302")
    later_upgraded = replace(upgraded_entry, earlier_timelines=3)
    assert later_upgraded.to_json() == upgraded[:-1] + ',"earlier_timelines":3}'
    assert parse_registry_entry(later_upgraded.to_json()) == later_upgraded
    sealed, sealed_entry = upgraded[:-1] + ',"sealed":"5ea1"}', replace(upgraded_entry, sealed="5ea1")
    assert (parse_registry_entry(sealed), sealed_entry.to_json()) == (sealed_entry, sealed)
    assert (parse_registry_entry(upgraded), upgraded_entry.to_json()) == (upgraded_entry, upgraded)
    assert replace(source, routing=2).to_json() == later


def test_formats_with_partitions_are_read_and_written_unchanged() -> None:
    """A shape on a partitioned table, and the truncation of one of its partitions."""
    definition = ShapeDefinition("a", ("public", "t"), partitions=(("public", "p"),), keys_have_partitions=True)
    entry = ShapeEntry("s", definition, 16385, LogOffset(9, 0))
    text = (
        '{"type":"shape","v":1,"source":"s","shape_id":"a","definition":{"table":["public","t"],"columns":null,'
        '"where":null,"replica":"default","primary_key":null,"partitions":[["public","p"]],"depends_on":[],'
        '"flush":{"bytes":null,"interval_ms":null,"chunk_bytes":null},"snapshot":false,"keys_have_partitions":true},'
        '"table_oid":16385,"starts_after":{"tx_offset":9,"op_offset":0},"removed_at":null,"ended_because":null,'
        '"starts_visible":false}'
    )
    assert entry.to_json() == text
    assert parse_registry_entry(text) == replace(entry, definition=replace(definition, snapshot=False))
    item = LogItem(LogOffset(9, 2), "truncate_partition", '"public"."t"/16403')
    event = ShapeChangesEvent(
        "s", "a", 7, LogOffset(8, 0), LogOffset(9, 2), start=False, has_begin=True, commit=None, items=(item,)
    )
    text = (
        '{"v":1,"source":"s","shape_id":"a","xid":7,"follows":{"tx_offset":8,"op_offset":0},"start":false,'
        '"last_log_offset":{"tx_offset":9,"op_offset":2},"has_begin":true,"commit":null,"items":[{"offset":{'
        '"tx_offset":9,"op_offset":2},"operation":"truncate_partition","key":"\\"public\\".\\"t\\"/16403"}]}'
    )
    assert event.to_json() == text
    assert ShapeChangesEvent.from_json(text) == event


def test_schema_of_changes_is_read_and_written_unchanged() -> None:
    """A server's tail compares it with its own; events of earlier releases, and of some shapes, have none."""
    event = ShapeChangesEvent(
        "s",
        "a",
        7,
        LogOffset(8, 0),
        LogOffset(9, 2),
        start=False,
        has_begin=True,
        commit=None,
        schema="56e79ca1fb6bcd8b",
    )
    text = (
        '{"v":1,"source":"s","shape_id":"a","schema":"56e79ca1fb6bcd8b","xid":7,"follows":{"tx_offset":8,"op_offset":0},'
        '"start":false,"last_log_offset":{"tx_offset":9,"op_offset":2},"has_begin":true,"commit":null,"items":[]}'
    )
    assert (event.to_json(), ShapeChangesEvent.from_json(text)) == (text, event)
    without = replace(event, schema=None)
    assert ShapeChangesEvent.from_json(without.to_json()) == without
    assert "schema" not in without.to_json()


def test_table_entry_is_read_and_written_unchanged() -> None:
    """It decides whether a shape survives a schema change, also one made while capture was down."""
    column = ColumnBinding(1, "id", 16_400, -1, 9, altered_before=150)
    mood = TypeBinding(16_400, "public", "mood", "enum", labels=(EnumLabel(1, "ok", 9),))
    keys = (KeyBinding(6, ("id",), 5, 9, 3, is_primary=True),)
    bound = TableBinding(7, ("public", "t"), keys, (column,), (), 4, 1, 800, types=(mood,), toast=11)
    entry = TableEntry("s", replace(bound, published_by=("all tables",)))
    assert parse_registry_entry(TABLE_ENTRY) == entry
    assert entry.to_json() == TABLE_ENTRY


def test_partition_entry_is_read_and_written_unchanged() -> None:
    """It decides from which transaction on a TRUNCATE of all other partitions leaves rows."""
    partition = PartitionBinding(8, ("public", "p"), 5, "/9", 801, published_by=("table 8",), toast=12)
    entry = PartitionEntry("s", 7, partition, 150)
    assert parse_registry_entry(PARTITION_ENTRY) == entry
    assert entry.to_json() == PARTITION_ENTRY
    assert "empty_at" not in PARTITION_ENTRY, "most entries have no such key"
    empty = replace(entry, empty_at=150)
    assert empty.to_json() == PARTITION_ENTRY.replace('"left_at":null', '"left_at":null,"empty_at":150')
    lost = replace(entry, left_at=160, lost_with=170)
    assert lost.to_json() == PARTITION_ENTRY.replace('"left_at":null', '"left_at":160,"lost_with":170')
    assert parse_registry_entry(lost.to_json()) == lost
    assert record_of(entry).key == '["s","","7","8"]'


def test_condensed_entry_is_read_and_written_unchanged() -> None:
    """It is all that says, for good, that an id was used and why its shape ended."""
    shape = parse_registry_entry(SHAPE_ENTRY)
    assert isinstance(shape, ShapeEntry)
    assert parse_registry_entry(REMOVED_SHAPE_ENTRY) == shape.condensed()
    assert shape.condensed().to_json() == REMOVED_SHAPE_ENTRY
    evicted = replace(shape, evicted_at_ms=7).condensed()
    assert evicted.to_json() == REMOVED_SHAPE_ENTRY.replace('"gone"', '"gone","evicted_at_ms":7')
    assert record_of(shape.condensed()).key == record_of(shape).key


def test_owner_of_a_table_is_told_from_others_as_before() -> None:
    """The ack table's and the registry table's: by a release that is replaced during an upgrade, too."""
    assert FENCING_APP_ID == "flushtracker: owner of this table"
    assert FOLDED_APP_ID == "flushtracker: rows up to this time are here, or were replaced"


def test_ack_table_keeps_its_columns() -> None:
    """Readers use their names; more columns may follow."""
    assert owned_table.CONFIGURATION["flushtracker-version"] == "1"
    assert ack_table.SCHEMA.names == [
        *("source", "batch_id", "ack_lsn", "ack_lsn_text", "last_seen_lsn", "pending_shapes"),
        *("blocking_shape", "blocking_since", "acked_at"),
    ]


def test_the_shape_log_and_the_registry_table_keep_their_columns_and_what_their_commits_count() -> None:
    """Readers use the names; a release that counted in another app transaction would not see what this one does."""
    app_ids = (
        *(claim.APP_ID, snapshots.REPLACED_APP_ID, upkeep.DELETED_APP_ID),
        *(cut_log.CUT_APP_ID, cut_log.REGISTRY_APP_ID),
    )
    assert app_ids == (
        "flushtracker: writer of this table",
        "flushtracker: snapshots",
        "flushtracker: logs of removed shapes deleted",
        "flushtracker: complete up to here, by registry table {registry}, source {source}",
        "flushtracker: cuts by the row of this time of registry table {registry}",
    )
    for schema, columns in ((log_columns.SCHEMA, LOG_COLUMNS), (registry_rows.SCHEMA, REGISTRY_COLUMNS)):
        assert " ".join(f"{field.name}:{field.type}" for field in schema) == columns


def test_snapshots_and_folds_are_read_and_written_unchanged() -> None:
    """The ranges of xids are what the other fields say; without them, a version before 0.1.0 wrote the snapshot."""
    text = (
        '{"xmin":4294967294,"xmax":4294967299,"xip":[4294967294],"lsn":900,"next":4294967301,"unseen":[[3,4],'
        "[4294967294,4294967294]]}"
    )
    snapshot = ShapeSnapshot.parse(7, text)
    assert snapshot == ShapeSnapshot(7, MvccSnapshot.parse("4294967294:4294967299:4294967294"), 900, 4294967301)
    assert [snapshot.contains(10, xid) for xid in (2, 3, 4, 5, 4294967294, 4294967295)] == [1, 0, 0, 1, 0, 1]
    assert snapshot.to_json() == text
    made_from = {None: 0, snapshot: 7, ShapeSnapshot.fold(8, 910, 7, snapshot): 7}
    for before, attempt in made_from.items():
        made = ShapeSnapshot.fold(9, 920, 7, before)
        expected = '{"xmin":1,"xmax":1,"xip":[],"lsn":920,"next":1,"unseen":[],"folded":7,"made_from":' + f"{attempt}}}"
        assert (made.to_json(), ShapeSnapshot.parse(9, expected)) == (expected, made)
    for old in (text.replace(',"unseen"', ',"other"'), made.to_json().replace("made_from", "other")):
        with pytest.raises(DecodeError, match=r"^value of the snapshot 7 in a shape's log: .*(unseen|made_from)"):
            ShapeSnapshot.parse(7, old)


def test_handles_and_offsets_that_browsers_keep_are_read_and_written_unchanged() -> None:
    """A page that is open over an upgrade goes on with them. With another digest, each would have to begin again."""
    kept: dict[str, Handle | ClientOffset] = {
        "0123456789abcdef-0-0": Handle("0123456789abcdef", 0),
        "0123456789abcdef-3-1": Handle("0123456789abcdef", 3, 1),
        "89abcdef0123456789abcdef-3-1": Handle("0123456789abcdef", 3, 1, "89abcdef"),
        "89abcdef0123456789abcdef-3-1-23997288": Handle("0123456789abcdef", 3, 1, "89abcdef", 23997288),
        "23997288_0": ClientOffset(23997288),
        "23997288_41": ClientOffset(23997288, 41),
    }
    assert {text: type(value).parse(text) for text, value in kept.items()} == kept
    assert [str(value) for value in kept.values()] == [*kept]
    shape, table = parse_registry_entry(SHAPE_ENTRY), parse_registry_entry(TABLE_ENTRY)
    assert isinstance(shape, ShapeEntry)
    assert isinstance(table, TableEntry)
    bound = replace(table.binding, columns=(replace(table.binding.columns[0], type_oid=23),))
    found = FoundShape(7, "7301/1/shapes", "a", 900, None, shape, bound)
    facts = ShapeFacts.of(found, "2c1f0e0a-6b0e-4d7c-9a51-0d5a4f6f2a10")
    assert facts.schema == '{"id":{"type":"int4","not_null":true,"pk_index":0}}'
    assert (facts.log, facts.digest) == ("96c1673c", "297b94bbb1e87e3f")
    later = replace(found, entry=replace(shape, definition=replace(shape.definition, incarnation=2)))
    assert ShapeFacts.of(later, facts.table_id).digest == "93327ae6aa36f0b1"


def test_state_of_a_kafka_sink_is_read_and_written_unchanged() -> None:
    text = (
        b'{"v":1,"source":"7301/1/shapes","shape_id":"orders","incarnation":2,"topic":"app.orders","topic_id":"f1",'
        b'"old_topics":["app.before"],"cursor":[900,4],"snapshot":[850,[[5,6]]],"after_truncate":true,"marks":[{"offset":[900,4],"spans":{"0":[7,9]}}],'
        b'"counted":{"sink":{"0":7}},"ends":{"0":9}}'
    )
    feed = StoredFeed(
        source="7301/1/shapes",
        shape_id="orders",
        incarnation=2,
        topic="app.orders",
        topic_id="f1",
        old_topics=("app.before",),
        cursor=(900, 4),
        snapshot=(850, ((5, 6),)),
        after_truncate=True,
        marks=[StoredMark((900, 4), {0: (7, 9)})],
        counted={"sink": {0: 7}},
        ends={0: 9},
    )
    assert read_feed(text) == feed
    assert feed.to_json() == text
    assert feed.key == b'["7301/1/shapes","orders"]'
    positions = b'{"positions":{"0":12},"writer":"kafka","v":1}'
    assert read_positions(positions) == StoredPositions({0: 12}, "kafka")
    assert StoredPositions({0: 12}, "kafka").to_json() == positions
    assert StoredPositions({0: 12}, "kafka").key == b'["positions","kafka"]'
