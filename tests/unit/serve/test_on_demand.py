"""Definitions on demand over HTTP: what contains them, who is refused, and what clients get when that changes."""

import asyncio
import gc
import math
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Final
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from flushtracker.config.write_config import LogConfig
from flushtracker.events.registry_events import TableEntry
from flushtracker.serve import open_tables
from flushtracker.serve.live_serve_status import LiveServeStatus
from flushtracker.serve.on_demand import selected_log
from flushtracker.serve.on_demand.selection import Selection
from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.rounds import Rounds
from flushtracker.serve.single_flight import AbandonedError
from flushtracker.serve.subset.row_order import RowOrder
from flushtracker.serve.subset.subset_rows import SubsetRows
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.row_versions import changed_versions
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.on_demand_log import BINDING, NAMES, ORDERS, WHOLE, order_entries, order_entry
from tests.support.sample_registry import again, register
from tests.support.serve_client import Client, Response, serving
from tests.support.shape_log_rows import SOURCE, Row, append, commit, item, snapshot_rows
from tests.support.tail_servers import PublishedRows, publish, schema_of, with_tail

_TABLES: Final = frozenset([ORDERS])
_SNAPSHOT: Final = ShapeSnapshot(1, MvccSnapshot.parse("1:1:"), lsn=8, next_xid=1)
PAID: Final = {"table": "orders", "where": "b", "columns": "t"}


def key(number: int) -> str:
    return f'"public"."orders"/"{number}"'


def order(number: int, **values: str | None) -> dict[str, str | None]:
    return {**dict.fromkeys(NAMES), "id": str(number), **values}


def begin(log: str, *definitions: ShapeDefinition) -> None:
    """Two orders, of which one is paid, in each shape that is registered."""
    register(log, *order_entries(*definitions))
    rows = {key(1): order(1, b="t", t="one"), key(2): order(2, b="f", t="two")}
    for each in definitions:
        append(log, snapshot_rows(_SNAPSHOT, rows, shape_id=each.id))


def change(log: str, tx: int, operation: str, number: int, shape_id: str = "orders", **values: str | None) -> None:
    row: Row = item((tx, 0), operation, key(number), {"id": str(number), **values}, shape_id=shape_id)
    append(log, [row, commit(tx, shape_id=shape_id)])


async def test_a_row_enters_and_leaves_as_an_update_crosses_the_condition(log: str) -> None:
    """Nothing is registered, old rows have only the key, and each row has the named columns and the key."""
    begin(log, WHOLE)
    async with serving(log, on_demand=_TABLES) as server:
        client = Client(PAID)
        await client.sync(server)
        assert client.rows == {key(1): {"id": "1", "t": "one"}}
        change(log, 24, "update", 2, b="t")
        found = await client.step(server, live=True)
        assert [each["headers"].get("operation") for each in found.json] == ["insert", None]
        assert client.rows == {key(1): {"id": "1", "t": "one"}, key(2): {"id": "2", "t": "two"}}
        change(log, 32, "update", 1, b="f")
        found = await client.step(server, live=True)
        assert (found.json[0]["headers"]["operation"], found.json[0]["headers"]["txids"]) == ("delete", [32])
        assert client.rows == {key(2): {"id": "2", "t": "two"}}


async def test_events_tell_nothing_while_nothing_passes_the_condition(log: str) -> None:
    """A change of the parent that the client does not see is no event, nor an up-to-date."""
    begin(log, WHOLE)
    async with serving(log, on_demand=_TABLES) as server:
        client, parts = Client(PAID), server.served.parts
        await client.sync(server)
        assert parts.on_demand is not None
        flights = parts.on_demand.log_flights
        found, gone = Response(), asyncio.Event()
        query = urlencode({**client.query(live=True), "live_sse": "true"}).encode()
        events = asyncio.create_task(server.request(query, gone=gone, into=found))
        while b"up-to-date" not in found.body:
            await asyncio.sleep(0.01)
        for number, tx in enumerate((24, 32, 40), 3):
            reads = flights.started
            change(log, tx, "insert", number, b="t" if tx == 40 else "f")
            # A read that goes on would have the next change, too.
            while flights.started == reads or flights.running:
                await asyncio.sleep(0.01)
        while key(5).replace('"', '\\"').encode() not in found.body:
            await asyncio.sleep(0.01)
        gone.set()
        await events
        assert found.body.count(b'"operation"') == 1
        assert found.body.count(b"up-to-date") == 2


async def test_a_live_request_waits_on_while_nothing_passes_the_condition(log: str) -> None:
    """It is answered by the change that it waits for, with the offset past all others; or in the end, with that."""
    begin(log, WHOLE)
    async with serving(log, on_demand=_TABLES, live_s=60) as server:
        client = Client(PAID)
        await client.sync(server)
        change(log, 24, "insert", 3, b="f")
        await server.served.parts.poller.current(fresh=True)
        change(log, 32, "insert", 4, b="t")
        found = await client.step(server, live=True)
        assert [each.get("key") for each in found.json] == [key(4), None]
        assert client.offset == "32_0"
    async with serving(log, on_demand=_TABLES, live_s=0.5) as server:
        change(log, 40, "insert", 5, b="f")
        found = await client.step(server, live=True)
        assert [each["headers"] for each in found.json] == [{"control": "up-to-date"}]
        assert client.offset == "40_0"


async def test_only_tables_that_the_operator_lists_are_served_on_demand(log: str) -> None:
    begin(log, WHOLE)
    async with serving(log) as server:
        response = await server.get({**PAID, "offset": "-1"})
        assert response.status == 404
        assert b"shapes are defined by the operator" in response.body


async def test_what_no_shape_contains_or_the_table_lacks_is_refused(log: str) -> None:
    """Rows that the only shape hides, columns that it lacks, and whatever cannot be judged."""
    some = replace(WHOLE, columns=("t",), where="b AND i4 > 1")
    begin(log, some)
    async with serving(log, on_demand=_TABLES) as server:
        for asked, status, why in (
            ({"where": "b", "columns": "t"}, 404, b"has all rows and columns"),
            ({"where": "i4 > 1 OR b", "columns": "t"}, 404, b"has all rows and columns"),
            ({"where": "i4 > 1 AND b AND n = 1", "columns": "t"}, 404, b"has all rows and columns"),
            ({"where": "i4 > 1 AND b"}, 404, b"has all rows and columns"),
        ):
            response = await server.get({"table": "orders", "offset": "-1", **asked})
            assert (response.status, why in response.body) == (status, True), response.body
    again(log, order_entry(replace(WHOLE, id="all")), 10)
    append(log, snapshot_rows(_SNAPSHOT, {key(1): order(1, b="t")}, shape_id="all"))
    async with serving(log, on_demand=_TABLES) as server:
        for asked, why in (
            ({"columns": "id,x"}, b"has no column x; it has id"),
            ({"where": "x = 1"}, b"which the table does not have"),
            ({"where": "t < 'a'"}, b"the order of text"),
            ({"where": "id IN (SELECT id FROM public.orders)"}, b"subquer"),
        ):
            response = await server.get({"table": "orders", "offset": "-1", **asked})
            assert (response.status, why in response.body) == (400, True), response.body


async def test_a_row_that_lacks_a_column_of_the_condition_is_not_taken_to_match(log: str) -> None:
    """A column that was added later is in no earlier row of the log; what the table has there is not told."""
    begin(log, WHOLE)
    change(log, 24, "insert", 1)
    later = replace(BINDING, columns=(*BINDING.columns, ColumnBinding(90, "later", 25, -1, 5)))
    register(log, TableEntry(SOURCE, later))
    parent = {"offset": "-1", "table": "orders"}
    async with serving(log, on_demand=_TABLES) as server:
        for condition in ("later IS NULL", "later IS NULL OR id > 0", "NOT later = 'x'"):
            for asked in ({"where": condition}, {"subset__where": condition}):
                found = await server.get(parent | asked)
                assert found.status == 422, found.body
                assert "a condition has no outcome for a row" in found.json["message"]
                assert "until flushtracker resync" in found.json["message"]
        order = {"subset__order_by": 'later COLLATE "C"', "subset__limit": "1"}
        assert (await server.get(parent | order)).status == 422
        assert (await server.get(parent | {"where": "id > 0"})).status == 200


async def test_the_parent_is_the_shape_with_most_of_the_condition(log: str) -> None:
    """In whatever order it is asked; a definition that a shape has itself is that shape's."""
    paid = replace(WHOLE, id="paid", where="b")
    begin(log, WHOLE, paid)
    change(log, 24, "update", 1, shape_id="paid", t="of paid")
    async with serving(log, on_demand=_TABLES) as server:
        for asked, text in (
            ({"where": "b AND id = 1"}, "of paid"),
            ({"where": "1 = id AND b", "columns": "t"}, "of paid"),
            ({"where": "id = 1"}, "one"),
            ({"where": "b"}, "of paid"),
        ):
            client = Client({"table": "orders", **asked})
            await client.sync(server)
            assert client.rows[key(1)]["t"] == text


async def test_client_begins_again_with_another_parent_when_its_own_has_ended(log: str) -> None:
    """A 409, even while it waits, and then the rows of the other one; 404 once none is left."""
    begin(log, WHOLE, replace(WHOLE, id="others"))
    async with serving(log, on_demand=_TABLES) as server:
        client = Client(PAID)
        await client.sync(server)
        assert client.rows == {key(1): {"id": "1", "t": "one"}}
        change(log, 24, "update", 1, shape_id="orders", t="of orders")
        change(log, 24, "update", 1, shape_id="others", t="of others")
        await client.step(server, live=True)
        assert client.rows[key(1)]["t"] == "of orders"
        ended = LogOffset(24, 2**62)
        again(log, replace(order_entry(), removed_at=ended), 10)
        while client.conflicts == 0:
            assert (await client.step(server, live=True)).status in {200, 409, 503}
        await client.sync(server)
        assert client.rows[key(1)]["t"] == "of others"
        again(log, replace(order_entry(replace(WHOLE, id="others")), removed_at=ended), 20)
        await server.served.parts.poller.current(fresh=True)
        assert (await server.get({**PAID, "offset": "-1"})).status == 404


async def test_no_row_is_shown_of_a_parent_that_was_defined_anew_meanwhile(log: str) -> None:
    """The look at the tables is older than what a read finds there: the shape may contain less by now."""
    begin(log, WHOLE)
    async with serving(log, on_demand=_TABLES) as server:
        client = Client(PAID)
        await client.sync(server)
        server.served.parts.poller._poll_s = 1_000
        await server.served.parts.poller.current(fresh=True)
        again(log, order_entry(replace(WHOLE, where="NOT b")), 10)
        response = await server.get({"table": "orders", "where": "id < 9", "offset": "-1"})
        assert (response.status, response.headers["retry-after"]) == (503, "2")
        change(log, 24, "insert", 3, b="t")
        await server.served.parts.poller.current(fresh=True)
        assert (await client.step(server)).status == 404


@pytest.mark.parametrize("asked", [{}, {"subset__limit": "9"}])
@pytest.mark.parametrize("is_looked_up", [True, False], ids=["by the read", "by the look"])
async def test_no_row_is_shown_of_a_shape_that_was_defined_anew_meanwhile(
    log: str, asked: dict[str, str], *, is_looked_up: bool
) -> None:
    """A look finds the shape that is defined as was asked; a later one finds its next incarnation, with more rows."""
    begin(log, replace(WHOLE, where="b"))
    async with serving(log) as server:
        poller = server.served.parts.poller
        poller._poll_s = 1_000
        await poller.current(fresh=True)
        if is_looked_up:
            await poller.shape("orders")
        again(log, order_entry(replace(WHOLE, incarnation=2)), 10)
        made = replace(_SNAPSHOT, attempt=2, incarnation=2, starts_after=8, lsn=12)
        append(log, snapshot_rows(made, {key(2): order(2, b="f")}, shape_id="orders"))
        query = {"table": "orders", "where": "b", "offset": "-1", **asked}
        assert (await server.get(query)).status == 503
        await poller.current(fresh=True)
        assert (await server.get(query)).status == 404


async def test_a_shape_that_flushes_otherwise_is_still_what_was_asked_for(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That changes within an incarnation, and while a round holds views back, only the registry has it."""
    begin(log, replace(WHOLE, where="b"))
    async with serving(log) as server:
        poller = server.served.parts.poller
        poller._poll_s = 1_000
        await poller.current(fresh=True)
        await poller.shape("orders")
        poller._known = poller.view.shapes
        monkeypatch.setattr(Rounds, "holding", 1)
        again(log, order_entry(replace(WHOLE, where="b", flush=FlushPolicy(interval_ms=7))), 10)
        await poller.current(fresh=True)
        assert (await server.get({"table": "orders", "where": "b", "offset": "-1"})).status == 200


def test_an_offset_of_the_past_is_of_the_same_source(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LSNs of two sources cannot be compared."""
    begin(log, WHOLE)
    ends = {"a": 90, "b": 70}
    monkeypatch.setattr(open_tables, "last_committed", lambda _uri, _options, found, _by: ends[found.source])
    tables, by = OpenTables(LogConfig(log, f"{log}_shapes"), None), datetime(2026, 1, 1, tzinfo=timezone.utc)
    one = tables.rows("orders", SOURCE, None)[1]
    assert [tables.since(replace(one, source=each), by) for each in ("a", "b", "a")] == [90, 70, 90]


def test_a_read_ends_between_two_rows_once_nobody_waits_for_it() -> None:
    """A condition may take a second for a row."""
    unused: Any = None
    judged = list[Any]()

    def hide(row: Any) -> bool:
        judged.append(row)
        return False

    def check() -> None:
        if judged:
            raise AbandonedError

    tables = [pa.table({"key": ["1", "2"], "value": ['{"id":"1"}', '{"id":"2"}']})]
    selection = Selection(unused, "", hide, None, "", unused, has_old=False)
    subset = SubsetRows(hide, RowOrder(), None, 0, 9)
    for read in (selected_log.selected_rows(tables, selection, check), subset._matching(tables, check)):
        judged.clear()
        with pytest.raises(AbandonedError):
            list(read)
        assert len(judged) == 1


async def test_the_tail_shows_no_row_that_the_condition_hides(log: str) -> None:
    """It has the parent's transactions as they are: only the log tells what a definition on demand has of them."""
    begin(log, WHOLE)
    async with serving(log, on_demand=_TABLES) as server:
        with_tail(server)
        whole, client = Client({"shape": "orders"}), Client({"table": "orders", "where": "b"})
        for each in (whole, client):
            await each.sync(server)
            await each.step(server)
        hidden = [item((24, 0), "insert", key(3), order(3, b="f"), shape_id="orders"), commit(24, shape_id="orders")]
        publish(server, *PublishedRows(schema_of(log, "orders")).events(hidden))
        for each in (whole, client):
            await each.step(server)
        assert set(whole.rows) == {key(1), key(2), key(3)}
        assert set(client.rows) == {key(1)}


async def test_definitions_of_one_parent_share_a_read_of_its_log(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at a changed parent costs one, however many definitions clients wait for; each gets its own rows."""
    begin(log, WHOLE)
    reads = list[int]()

    def counted(table: Any, shape: Any, after_tx: int, check: Any) -> Any:
        reads.append(after_tx)
        return changed_versions(table, shape, after_tx, check)

    monkeypatch.setattr(selected_log, "changed_versions", counted)
    async with serving(log, on_demand=_TABLES) as server:
        clients = [Client({"table": "orders", "where": f"id = {number}"}) for number in range(5)]
        for client in clients:
            await client.sync(server)
        change(log, 24, "update", 2, t="new")
        await server.served.parts.poller.current(fresh=True)
        await asyncio.gather(*(client.step(server) for client in clients))
        assert reads == [0]
        texts = [{row["t"] for row in client.rows.values()} for client in clients]
        assert texts == [set(), {"one"}, {"new"}, set(), set()]


async def test_too_many_definitions_get_a_503_while_those_asked_for_go_on(log: str) -> None:
    """A definition that nobody asks for makes room for another one."""
    begin(log, WHOLE)
    async with serving(log, on_demand=_TABLES, definitions=3) as server:
        parts, looks = server.served.parts, server.served.answers._looks
        assert parts.on_demand is not None
        client = Client(PAID)
        await client.sync(server)
        found = [(await server.get(asked(number))) for number in range(10)]
        assert [each.status for each in found] == [200, 200, *[503] * 8]
        assert {each.headers["retry-after"] for each in found[2:]} == {"30"}
        assert (len(parts.on_demand.kept), parts.on_demand.kept.refused) == (3, 8)
        change(log, 24, "update", 1, t="new")
        await client.step(server, live=True)
        assert client.rows == {key(1): {"id": "1", "t": "new"}}
        now_s = looks._now_s()
        looks._now_s = lambda: now_s + 100
        await client.step(server)
        looks._now_s = lambda: now_s + 130
        assert (await server.get(asked(11))).status == 200
        assert len(parts.on_demand.kept) == 2


async def test_a_definition_is_forgotten_while_nobody_asks_for_any(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's looks forget it, so it costs nothing any more, and the status does not have it."""
    monkeypatch.setattr("flushtracker.serve.on_demand.kept_selections.FORGET_S", 0.0)
    begin(log, WHOLE)

    def selections() -> int:
        return sum(isinstance(each, Selection) and "7777" in repr(each.required) for each in gc.get_objects())

    async with serving(log, on_demand=_TABLES) as server:
        on_demand = server.served.parts.on_demand
        assert on_demand is not None
        kept = on_demand.kept
        kept._forget_s = math.inf
        assert (await server.get(asked(7777))).status == 200
        assert (len(kept), kept.characters, selections()) == (1, len("id = 7777"), 1)
        kept._forget_s = 0.0
        await server.served.parts.poller.current(fresh=True)
        await server.served.parts.poller.current(fresh=True)
        assert (len(kept), kept.characters) == (0, 0)
        # A thread lets go of what it has read only after the request is answered.
        end_s = time.monotonic() + 20
        while selections() and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        assert selections() == 0


async def test_definitions_keep_their_places_when_the_registry_changes(log: str) -> None:
    """New ones of an attacker cannot take them meanwhile, and what answers them is looked up again."""
    begin(log, WHOLE)
    async with serving(log, on_demand=_TABLES, definitions=2) as server:
        parts = server.served.parts
        assert parts.on_demand is not None
        client = Client(PAID)
        await client.sync(server)
        assert (await server.get(asked(1))).status == 200
        before = len(parts.on_demand.kept), parts.on_demand.kept.characters
        again(log, order_entry(replace(WHOLE, id="other", snapshot=False)), 10)
        await parts.poller.current(fresh=True)
        assert {(await server.get(asked(number))).status for number in range(2, 9)} == {503}
        change(log, 24, "update", 1, t="new")
        await client.step(server, live=True)
        assert client.rows == {key(1): {"id": "1", "t": "new"}}
        assert (len(parts.on_demand.kept), parts.on_demand.kept.characters) == before


def asked(number: int) -> dict[str, Any]:
    return {"table": "orders", "where": f"id = {number}", "offset": "-1"}


async def test_the_status_tells_what_is_served_on_demand(log: str) -> None:
    begin(log, WHOLE)
    async with serving(log, on_demand=_TABLES, definitions=1) as server:
        for number in range(3):
            await server.get(asked(number))
        status = LiveServeStatus(server.served, 0).read()
        assert (status.on_demand_definitions, status.refused_definitions) == (1, 2)
