"""What capture's document says from its start on, across connections, and what is counted for it."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flushtracker.capture.collector import ChangeCounts
from flushtracker.capture.live_capture_status import LiveCaptureStatus
from flushtracker.capture.shapes.delayed_shapes import DelayedShapes
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.source.captured_source import CapturedSource
from flushtracker.capture.wire.standby_status import StandbyStatus
from flushtracker.postgres.replication_frames import Keepalive
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.unpublished import Unpublished
from flushtracker.status.capture_status import CaptureStatus, Eviction
from flushtracker.status.http.metrics import field_metrics
from flushtracker.wal.changes import Column, Commit, Insert, Relation, TransactionFragment, Update
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.pgoutput import Begin, CommitMessage
from tests.support.fake_world import BEGUN, CONFIRMED, Connection, FakeWorld, shape_entry, transaction
from tests.support.quiet_server import QuietServer
from tests.support.row_messages import insert

USERS = Relation(1, "public", "users", "full", (Column("id", 20, is_key=True),))


def fragment(changes: int, *, key_moves: bool = False) -> TransactionFragment:
    rows = tuple(
        Update(USERS, LogOffset(1000, 2 * number), {"id": str(number)}, {"id": f"{number + 1}"})
        if key_moves
        else Insert(USERS, LogOffset(1000, 2 * number), {"id": str(number)})
        for number in range(changes)
    )
    return TransactionFragment(1, 1000, rows[-1].offset, has_begin=True, commit=Commit("t", 1040), changes=rows)


def test_a_change_counts_once_however_many_shapes_it_concerns() -> None:
    """Three of ten changes concern a shape, two of them two shapes; and five rows were not even decoded."""
    router = EventRouter(
        [ShapeDefinition("low", USERS.table, where="id < 3"), ShapeDefinition("lower", USERS.table, where="id < 2")]
    )
    counts = ChangeCounts()
    counts.handle_fragment(router.route(fragment(10)))
    assert (counts.matched, counts.unmatched) == (0, 0)
    counts.handle_commit(15)
    assert (counts.matched, counts.unmatched) == (3, 12)
    counts.handle_fragment(())
    counts.handle_commit(15)
    assert (counts.matched, counts.unmatched) == (3, 12)


def test_an_update_that_is_split_counts_once() -> None:
    """It has two items, in each shape."""
    definitions = [ShapeDefinition(name, USERS.table, replica="full") for name in ("a", "b")]
    counts = ChangeCounts()
    counts.handle_fragment(EventRouter(definitions).route(fragment(4, key_moves=True)))
    counts.handle_commit(4)
    assert (counts.matched, counts.unmatched) == (4, 0)


def test_the_converter_counts_rows_that_it_skips() -> None:
    """At the end of their transaction."""
    converter = FragmentConverter()
    converter.handle(Begin(1000, "t", 1))
    converter.skip_row(insert(1, ("7",)))
    converter.skip_row(insert(1, ("8",)))
    assert converter.committed_changes == 0
    converter.handle(CommitMessage(1000, 1040, "t"))
    assert converter.committed_changes == 2


def test_the_document_of_a_capture_that_has_not_connected_says_so() -> None:
    """Nothing in it is made up."""
    status = LiveCaptureStatus(lambda: 0, clock=lambda: 5.0).read()
    assert (status.at_ms, status.started_at_ms, status.source, status.is_connected) == (5000, 5000, None, False)
    assert (status.received_lsn, status.acknowledged_lsn, status.slot, status.reconnects) == (None, None, None, 0)


def test_what_a_lost_connection_has_reached_and_counted_is_kept() -> None:
    """Sums never go back, also for who reads between two connections."""
    status = LiveCaptureStatus(lambda: 7)
    first = StandbyStatus(1000)
    with status.connection("7/1/s", first):
        first.handle_received(2000)
        first.handle_ack(1500)
    assert (status.read().is_connected, status.read().received_lsn, status.read().acknowledged_lsn) == (
        False,
        2000,
        1500,
    )
    assert (status.read().reconnects, status.read().publish_queue_bytes) == (0, 7)
    with pytest.raises(KeyError), status.connection("7/1/s", StandbyStatus(1000)):
        raise KeyError
    assert (status.read().reconnects, status.read().is_connected) == (1, False)


def test_capture_is_connected_once_it_knows_its_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, its document has no evictions, or the last connection's; another capture may have evicted since."""
    world = FakeWorld(tmp_path, monkeypatch)
    world.define("users")
    evicted = replace(shape_entry("gone", removed_at=CONFIRMED + 1), ended_because="silent", evicted_at_ms=5)
    world.register(BEGUN, shape_entry("users"), evicted)
    before: list[tuple[bool, int, tuple[Eviction, ...]]] = []
    after: list[tuple[bool, int, tuple[Eviction, ...]]] = []
    begin = CapturedSource.begin

    def look(into: list[tuple[bool, int, tuple[Eviction, ...]]]) -> None:
        status = world.loop.status()
        into.append((status.is_connected, status.shapes, status.evictions))

    def looking(source: CapturedSource, *arguments: Any) -> Subscriptions:
        look(before)
        return begin(source, *arguments)

    monkeypatch.setattr(CapturedSource, "begin", looking)
    second = Connection(1, transaction(2000, 50))
    second.at_the_end = lambda: look(after)
    world.capture(Connection(1, transaction(2000, 50)), second)
    evictions = (Eviction("gone", 5, "silent"),)
    assert before == [(False, 0, ()), (False, 1, evictions)]
    assert after == [(True, 1, evictions)]


def test_the_loop_tells_of_two_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is sent again counts again; the positions are those of the last connection."""
    world = FakeWorld(tmp_path, monkeypatch)
    world.define("users", "others")
    world.acks["7/1/s"] = 900
    world.register(BEGUN, shape_entry("users"), shape_entry("others"))
    seen = []
    second = Connection(1, [*transaction(2000, 50), *transaction(3000, 60), Keepalive(4500, reply_requested=False)])
    second.at_the_end = lambda: seen.append(world.loop.status())
    second.until = lambda: world.loop.status().acknowledged_lsn == 900 and world.loop.status().published_lsn == 4499
    world.capture(Connection(1, transaction(2000, 50)), second)
    (status,) = seen
    assert (status.source, status.is_connected, status.shapes) == ("7/1/s", True, 2)
    assert (status.changes_matched, status.changes_unmatched, status.reconnects) == (3, 0, 1)
    assert (status.received_lsn, status.published_lsn, status.acknowledged_lsn) == (4500, 4499, 900)
    assert status.acks_read_at_ms is not None
    assert status.slot is None
    assert not world.loop.status().is_connected


class _NoTables(QuietServer):
    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        raise AssertionError(f"no table of {oids} is looked up")


def test_what_shapes_on_thousands_of_tables_wait_for_does_not_fill_the_document(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each table had an object, and no program reads a document of more than 1 MiB. The metric counts all."""
    delayed, id_column = DelayedShapes(), ColumnBinding(1, "id", 23, -1, 1)
    delayed.connect(_NoTables())
    tables = [TableBinding(oid, ("public", f"{'t' * 50}{oid:010}"), (), (id_column,)) for oid in range(5_000)]
    whys = {table.oid: Unpublished("w" * 300, f"ALTER {table.oid}" if table.oid >= 4_990 else None) for table in tables}
    resolved = [(ShapeDefinition(f"s{table.oid}", table.table), table) for table in tables]
    assert delayed.admit(resolved, whys, is_new_source=False) == []
    status = CaptureStatus(1, 1, None, is_connected=False, waiting=delayed.waiting)
    assert len(json.dumps(status.to_json())) < 1 << 14
    assert [each.statement for each in status.waiting[:11]] == [*(f"ALTER {oid}" for oid in range(4_990, 5_000)), None]
    assert (status.waiting[-1].table, status.waiting[-1].count) == ("(4,980 others)", 4_980)
    (sample,) = field_metrics(status, 1)["shapes_waiting"].samples
    assert sample.value == 5_000
    assert len(caplog.messages) == 10


def test_each_statement_that_somebody_has_to_run_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """If nobody runs the first twenty, no later one was ever shown."""
    delayed, id_column = DelayedShapes(), ColumnBinding(1, "id", 23, -1, 1)
    delayed.connect(_NoTables())
    tables = [TableBinding(oid, ("public", f"t{oid}"), (), (id_column,)) for oid in range(30)]
    whys = {table.oid: Unpublished("no key", f"ALTER {table.oid};") for table in tables}
    delayed.admit([(ShapeDefinition(f"s{each.oid}", each.table), each) for each in tables], whys, is_new_source=False)
    assert all(f"statement=ALTER {oid};" in caplog.text for oid in range(30))
    assert "10 need a statement, which capture's log has" in delayed.waiting[-1].reason
