"""The server of shapes over real tables: what clients get, when they begin again, and when they are refused."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flushtracker.config.write_config import LogConfig
from flushtracker.errors import SinkError, SnapshotMissingError
from flushtracker.serve import body, event_stream, log_pages
from flushtracker.serve import reads as reads_module
from flushtracker.serve.body import Body, Page, PageFile
from flushtracker.serve.cache import PageCache, PageKey
from flushtracker.serve.live_serve_status import LiveServeStatus
from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.reads import LogReads
from flushtracker.serve.refusals import UnavailableError
from flushtracker.serve.single_flight import AbandonedError
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.followed_log import FollowedLog
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.status.http.asgi import Send
from flushtracker.status.program_findings import program_findings
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.sample_registry import again, register, shape_entry, table_entry
from tests.support.serve_client import Client, Response, Server, config_of, serving
from tests.support.shape_log_rows import append, commit, inserts, item, snapshot_rows
from tests.support.snapshot_log import append_snapshot

USERS = {"shape": "users"}


@pytest.fixture
def log(log: str) -> str:
    register(log, shape_entry(), table_entry())
    return log


async def test_client_gets_the_rows_and_then_the_changes(log: str) -> None:
    """First all rows in one answer that says so, then what each transaction has changed, then nothing."""
    append(log, inserts(10, "a", "b"))
    async with serving(log) as server:
        client = Client(USERS)
        first = await client.step(server)
        assert (first.status, client.offset, client.is_up_to_date) == (200, "10_0", True)
        assert set(client.rows) == {"a", "b"}
        assert first.headers["content-type"] == "application/json"
        assert json.loads(first.headers["electric-schema"])["id"] == {
            "type": "int4",
            "not_null": True,
            "pk_index": 0,
        }
        append(log, [item((20, 0), "update", "a", {"id": "a", "note": "x"}), item((20, 4), "delete", "b"), commit(20)])
        await server.served.parts.poller.current(fresh=True)
        second = await client.step(server)
        assert (client.offset, client.rows) == ("20_0", {"a": {"id": "a", "note": "x"}})
        headers = [message["headers"] for message in second.json]
        assert headers[0] == {
            "operation": "update",
            "relation": ["public", "users"],
            "lsn": "20",
            "op_position": 0,
            "txids": [20],
        }
        assert headers[1]["last"] is True
        third = await client.step(server)
        assert (third.json, client.offset) == ([{"headers": {"control": "up-to-date"}}], "20_0")


async def test_waiting_client_is_answered_as_soon_as_there_is_more(log: str) -> None:
    """A hundred clients that wait share one read; one that goes away is not waited for."""
    append(log, inserts(10, "a"))
    async with serving(log, live_s=30) as server:
        clients = [Client(USERS) for _ in range(100)]
        for client in clients:
            await client.sync(server)
        assert server.served.parts.row_flights.started == 1
        gone = asyncio.Event()
        lost = asyncio.create_task(server.get(clients[0].query(live=True), gone=gone))
        waiting = [asyncio.create_task(client.step(server, live=True)) for client in clients]
        poller = server.served.parts.poller
        while poller.waiting < 101:
            await asyncio.sleep(0.01)
        gone.set()
        assert (await lost).status == 0
        assert poller.waiting == 100
        began = time.monotonic()
        append(log, inserts(20, "b"))
        await asyncio.gather(*waiting)
        assert time.monotonic() - began < 10
        assert {client.offset for client in clients} == {"20_0"}
        assert all(client.is_up_to_date for client in clients)
        assert server.served.parts.log_flights.started == 1
        assert poller.waiting == 0


async def test_small_answer_is_sent_as_one_part(log: str) -> None:
    """Each part is a packet, and a call of the system."""
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        response = await server.get({**USERS, "offset": "-1"})
        assert [json.loads(chunk)[0]["key"] for chunk in response.chunks] == ["a"]


async def test_waiting_client_gets_an_empty_answer_in_the_end(log: str) -> None:
    """With another cursor, so that no cache gives it the same answer again."""
    append(log, inserts(10, "a"))
    async with serving(log, live_s=0.3) as server:
        client = Client(USERS)
        await client.sync(server)
        for _ in range(2):
            before = client.cursor
            response = await client.step(server, live=True)
            assert (response.json, client.is_up_to_date) == ([{"headers": {"control": "up-to-date"}}], True)
            assert client.cursor != before


async def test_clients_that_began_to_wait_together_are_not_answered_together(log: str) -> None:
    """A thousand that were, came back together, and a change waited behind them."""
    append(log, inserts(10, "a"))
    async with serving(log, live_s=2.0) as server:
        client = Client(USERS)
        await client.sync(server)
        ends_s: list[float] = []

        async def wait() -> None:
            await server.get(client.query(live=True))
            ends_s.append(time.monotonic())

        await asyncio.gather(*(wait() for _ in range(50)))
    assert max(ends_s) - min(ends_s) > 0.2


async def test_rows_and_log_come_in_pages_of_whole_transactions(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server goes on in the rows where the first one has stopped, and so does one that kept nothing."""
    for module in (body, log_pages):
        monkeypatch.setattr(module, "PAGE_BYTES", 1_000)
    monkeypatch.setattr("flushtracker.serve.state_rows.PAGE_BYTES", 1_000)
    monkeypatch.setattr("flushtracker.serve.body.SMALL_BYTES", 300)
    append(log, inserts(10, *(f"k{n:03}" for n in range(100))))
    async with serving(log) as one, serving(log) as other:
        client, pages = Client(USERS), 0
        for number in range(100):
            append(log, inserts(20 + number, f"later{number}")) if number in {3, 5} else None
            await client.step((one, other)[number % 2])
            pages += 1
            if client.is_up_to_date:
                break
        assert pages > 10
        await one.served.parts.poller.current(fresh=True)
        client.is_up_to_date = False
        await client.sync(one)
        assert len(client.rows) == 102
        late = Client(USERS, offset="10_0", handle=client.handle)
        for number in range(200, 260):
            append(log, inserts(number, *(f"t{number}-{n}" for n in range(3))))
        await one.served.parts.poller.current(fresh=True)
        sizes, reads = [], one.served.parts.log_flights.started
        while not late.is_up_to_date:
            response = await late.step(one)
            sizes.append(len(response.body))
            keys = [message["key"] for message in response.json if "key" in message and message["key"][0] == "t"]
            assert len(keys) % 3 == 0, "part of a transaction"
        assert len(sizes) > 5
        assert max(sizes) < 1_200
        assert one.served.parts.log_flights.started == reads + 1, "each page was read by itself"
        assert len(late.rows) == 182


async def test_rows_made_again_for_an_old_offset_are_not_the_newest(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second server has looked further already: neither the client nor a new one is told that it is up to date."""
    for module in ("body", "log_pages", "state_rows"):
        monkeypatch.setattr(f"flushtracker.serve.{module}.PAGE_BYTES", 1_000)
    append(log, inserts(10, *(f"k{n:03}" for n in range(20))))
    async with serving(log) as one, serving(log) as other:
        client, late = Client(USERS), Client(USERS)
        await client.step(one)
        assert not client.is_up_to_date
        append(log, inserts(20, "later"))
        append(log, [item((30, 0), "delete", "k000"), commit(30)])
        await other.served.parts.poller.current(fresh=True)
        ahead = await other.get({**USERS, "offset": "10_0", "handle": str(client.handle)})
        assert ahead.headers["electric-offset"] == "30_0"
        while not client.is_up_to_date:
            await client.step(other)
            assert client.offset == "30_0" or not client.is_up_to_date
        assert len(client.rows) == 20
        first = await late.step(other)
        assert first.headers["electric-offset"].startswith("30_"), "a new client begins with the old rows"
        await late.sync(other)
        assert late.rows == client.rows


async def test_transaction_that_is_too_large_is_taken_as_rows(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages would be in memory at once; the client begins again, and has all of it."""
    monkeypatch.setattr(reads_module, "MOST_TRANSACTION", 2_000)
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        client = Client(USERS)
        await client.sync(server)
        append(log, inserts(20, *(f"k{n:03}" for n in range(200))))
        await client.step(server, live=True)
        assert client.conflicts == 1
        await client.sync(server)
        assert (len(client.rows), client.offset) == (201, "20_0")


async def test_read_for_a_client_that_is_gone_is_abandoned(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody works for it any more, and too many that wait are refused."""
    append(log, inserts(10, "a"))
    let = threading.Event()
    rows_of = OpenTables.rows

    def slow(*arguments: Any) -> Any:
        let.wait(30)
        return rows_of(*arguments)

    monkeypatch.setattr(OpenTables, "rows", slow)
    async with serving(log) as server:
        flights = server.served.parts.row_flights
        flights._limit = 1
        gone = asyncio.Event()
        lost = asyncio.create_task(server.get({**USERS, "offset": "-1"}, gone=gone))
        while not flights.running:
            await asyncio.sleep(0.01)
        again(log, shape_entry("new"), 5)
        busy = await server.get({"shape": "new", "offset": "-1"})
        assert (busy.status, busy.headers["retry-after"]) == (503, "2")
        gone.set()
        assert (await lost).status == 0
        let.set()
        while flights.running:
            await asyncio.sleep(0.01)
        assert len(server.served.parts.states) == 0
        await Client(USERS).sync(server)


@pytest.mark.parametrize("is_sse", [False, True])
async def test_waiting_client_that_goes_away_ends_its_read(
    log: str, monkeypatch: pytest.MonkeyPatch, *, is_sse: bool
) -> None:
    """Also while what it has waited for is being read."""
    append(log, inserts(10, "a"))
    let = threading.Event()
    log_of = OpenTables.log

    def slow(*arguments: Any) -> Any:
        let.wait(30)
        return log_of(*arguments)

    monkeypatch.setattr(OpenTables, "log", slow)
    async with serving(log, live_s=30) as server:
        client = Client(USERS)
        await client.sync(server)
        gone = asyncio.Event()
        query = client.query(live=True) | ({"live_sse": "true"} if is_sse else {})
        lost = asyncio.create_task(server.get(query, gone=gone))
        while not server.served.parts.poller.waiting:
            await asyncio.sleep(0.01)
        append(log, inserts(20, "b"))
        flights = server.served.parts.log_flights
        while not flights.running:
            await asyncio.sleep(0.01)
        gone.set()
        assert (await asyncio.wait_for(lost, 5)).status == (200 if is_sse else 0)
        assert not flights._flights
        let.set()


def test_read_that_is_abandoned_ends_before_its_rows_are_sorted(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check between what it reads ends it; nothing is returned that would end it later."""
    append(log, inserts(10, "a", "b"))
    reads = LogReads(LogConfig(log, f"{log}_shapes"), None)
    tables = reads.open()
    tables.refresh()
    found = tables.seen("users").found

    def abandoned() -> None:
        raise AbandonedError

    def folded(items: Iterable[Any], _: object) -> None:
        pytest.fail(f"{len(list(items))} tables were sorted")

    monkeypatch.setattr("flushtracker.shape_log.table.folded_shape.fold_items", folded)
    with pytest.raises(AbandonedError):
        tables.reader.row_tables(found, abandoned)
    with pytest.raises(AbandonedError):
        tables.reader.log_tables(FollowedLog.from_start(found, changes_only=False), abandoned)


async def test_error_of_a_shape_is_a_new_one_for_each_request(log: str) -> None:
    """One that was raised again would keep what every request before has done."""
    entry = shape_entry("new")
    again(log, replace(entry, definition=replace(entry.definition, snapshot=True, incarnation=2)), 5)
    async with serving(log) as server:
        poller, errors = server.served.parts.poller, list[Exception]()
        for _ in range(3):
            with pytest.raises(SnapshotMissingError) as raised:
                await poller.shape("new")
            errors.append(raised.value)
        assert len(set(map(id, errors))) == len(set(map(str, errors))) + 2 == 3
        assert not any(isinstance(each, BaseException) for each in poller.view.shapes.values())


async def test_handle_that_was_dropped_is_not_given_again(log: str) -> None:
    """A client that was told to drop a handle, by whatever server, gets another one, and the same rows."""
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        client = Client(USERS)
        await client.sync(server)
        handle = str(client.handle)
        for handle_sent in (handle, None):
            again = Client(USERS, expired=handle, handle=handle_sent)
            response = await again.step(server)
            assert response.status == (409 if handle_sent else 200)
            await again.sync(server)
            assert (again.handle, again.rows) == (f"{handle[:-1]}1", client.rows)
        response = await server.get({**USERS, "offset": "10_0", "handle": handle, "expired_handle": handle})
        assert response.status == 409
        for strange in ("x", "0123456789abcdef-0-0", handle.replace("-0-", "-7-")):
            response = await server.get({**USERS, "offset": "10_0", "handle": strange})
            assert (response.status, response.headers["electric-handle"]) == (409, handle)
            assert response.headers["cache-control"] == "public, max-age=5"


async def test_server_that_is_behind_looks_before_it_answers(log: str) -> None:
    """What another server has shown is not missing from this one's answers, nor is the client told to begin again."""
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        client = Client(USERS)
        await client.sync(server)
        server.served.parts.poller._poll_s = 1_000
        await server.served.parts.poller.current(fresh=True)
        append(log, inserts(20, "b"))
        ahead = Client(USERS, offset="20_0", handle=client.handle)
        response = await ahead.step(server)
        assert (response.status, ahead.offset, ahead.conflicts) == (200, "20_0", 0)
        append(log, inserts(30, "c"))
        sent_lsn = Client(USERS, handle=client.handle, expired="0123456789abcdef-0-0")
        await sent_lsn.sync(server)
        assert (sent_lsn.offset, set(sent_lsn.rows)) == ("30_0", {"a", "b", "c"})
        beyond = await server.get({**USERS, "offset": "99_0", "handle": str(client.handle)})
        assert (beyond.status, beyond.headers["electric-offset"]) == (200, "99_0")


async def test_storage_that_fails_is_not_remembered(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look or a read that fails is a 503 that says when to try again, and the next one is right, without a change."""
    append(log, inserts(10, "a"))
    fails = False
    look, log_of, rows_of = OpenTables.refresh, OpenTables.log, OpenTables.rows

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if fails:
                raise SinkError("the storage is away, with its secret name")
            return original(*arguments)

        return call

    monkeypatch.setattr(OpenTables, "refresh", failing(look))
    monkeypatch.setattr(OpenTables, "log", failing(log_of))
    monkeypatch.setattr(OpenTables, "rows", failing(rows_of))
    async with serving(log) as server:
        await server.served.parts.poller.shape("users")
        fails = True
        response = await Client(USERS).step(server)
        assert (response.status, response.headers["retry-after"]) == (503, "2")
        assert b"secret" not in response.body
        assert response.headers["cache-control"] == "no-store"
        assert (await server.get({"shape": "new", "offset": "-1"})).status == 503
        again(log, replace(shape_entry("new")), 5)
        fails = False
        client = Client(USERS)
        await client.sync(server)
        assert set(client.rows) == {"a"}
        assert (await server.get({"shape": "new", "offset": "-1"})).status == 200


async def test_entry_is_not_lost_if_the_look_at_it_fails(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry was read, and then the log could not be: the next look still has the entry as a new one."""
    append(log, inserts(10, "a"))
    seen, fails = OpenTables.seen, 0

    def sometimes(self: OpenTables, shape_id: str) -> Any:
        nonlocal fails
        if fails:
            fails -= 1
            raise SinkError("away")
        return seen(self, shape_id)

    monkeypatch.setattr(OpenTables, "seen", sometimes)
    async with serving(log) as server:
        await Client(USERS).sync(server)
        fails = 3
        again(log, shape_entry("new"), 5)
        while fails:
            await asyncio.sleep(0.01)
        assert (await server.get({"shape": "new", "offset": "-1"})).status == 200
        again(log, shape_entry(removed_at=LogOffset(12, 0)), 9)
        assert (await server.get({**USERS, "offset": "now", "handle": "x"})).status == 410


async def test_server_without_a_recent_look_answers_nothing(log: str) -> None:
    """It is not ready, either."""
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        await Client(USERS).sync(server)
        poller = server.served.parts.poller
        poller.close()
        poller.view = replace(poller.view, began_s=poller.view.began_s - 31)
        response = await server.get({**USERS, "offset": "-1"})
        assert response.status == 503
        assert (await server.request(path=b"/readyz")).status == 503
        assert (await server.request(path=b"/healthz")).status == 200
        status = LiveServeStatus(server.served, 0).read()
        assert [each.kind for each in program_findings(status)] == ["serve_not_ready"]
        assert (status.recent_errors, status.recent_answers) == (2, sum(each.count for each in status.answers))


async def test_an_answer_that_fails_after_it_has_begun_counts_as_an_error(
    log: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client sees a connection that is cut. Counted as the 200 that it began with, nobody would be told."""
    append(log, inserts(10, "a"))

    async def broken(send: Send, *_: object, **_more: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise SinkError("a file is gone")

    async with serving(log) as server:
        monkeypatch.setattr("flushtracker.serve.exchange.send_answer", broken)
        await server.get({**USERS, "offset": "-1"})
        assert dict(server.served.app.answered) == {200: 1, 503: 1}
        assert server.served.app.recent.last_minute().errors == 1
    assert [record.message for record in caplog.records if "answer cut off status=503" in record.message]


async def test_ended_shape_stops_its_clients_with_the_reason(log: str) -> None:
    """A 410, which a client does not repeat; also for one that waits. The source is not named."""
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        client = Client(USERS)
        await client.sync(server)
        waiting = asyncio.create_task(client.step(server, live=True))
        while not server.served.parts.poller.waiting:
            await asyncio.sleep(0.01)
        reason = "table public.users was renamed to public.people"
        again(log, shape_entry(removed_at=LogOffset(12, 0), ended_because=reason), 5)
        response = await waiting
        message = f"shape users has ended because {reason}, and changes no more"
        assert (response.status, response.json) == (410, {"message": message})
        assert (await server.get({**USERS, "offset": "-1"})).json == {"message": message}


async def test_server_that_is_behind_stops_no_client_of_a_shape_that_has_begun_again(log: str) -> None:
    """Another server may have shown it already. A 410 would stop the client for good."""
    append(log, inserts(10, "a"))
    ended = shape_entry(removed_at=LogOffset(12, 0), ended_because="its owner said so")
    again(log, ended, 5)
    behind = Server(replace(config_of(log), poll_ms=3_600_000))
    behind.served.parts.poller.start()
    try:
        assert (await behind.get({**USERS, "offset": "-1"})).status == 410
        definition = replace(ended.definition, snapshot=True, incarnation=2)
        again(log, replace(shape_entry(), definition=definition, starts_after=LogOffset(12, 0)), 9)
        made = ShapeSnapshot(1, MvccSnapshot(13, 13), 20, 13, incarnation=2, starts_after=12)
        append(log, snapshot_rows(made, {"b": {"id": "b"}}))
        client = Client(USERS)
        await client.sync(behind)
        assert set(client.rows) == {"b"}
    finally:
        behind.served.close()


async def test_shape_without_its_snapshot_is_answered_later(log: str) -> None:
    """A 503 until the snapshot is there, then its rows; a client that followed the changes before begins again."""
    entry = shape_entry("new")
    again(log, replace(entry, definition=replace(entry.definition, snapshot=True)), 5)
    async with serving(log) as server:
        new = {"shape": "new"}
        response = await server.get({**new, "offset": "-1"})
        assert (response.status, response.headers["retry-after"]) == (503, "5")
        changes_only = await server.get({**new, "offset": "-1", "log": "changes_only"})
        assert (changes_only.status, changes_only.headers["electric-offset"]) == (200, "0_0")


async def test_snapshot_that_is_taken_again_and_rows_in_it(log: str) -> None:
    """A client that began before the snapshot is told; a new one has the snapshot's rows, and later changes."""
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        client = Client(USERS)
        await client.sync(server)
        snapshot = ShapeSnapshot(1, MvccSnapshot(50, 50), 50, 51)
        assert append_snapshot(log, snapshot, {"a": {"id": "a"}, "old": {"id": "old"}})
        append(log, inserts(60, "b"))
        await client.step(server, live=True)
        await client.sync(server)
        assert (client.conflicts, set(client.rows)) == (1, {"a", "old", "b"})


async def test_log_that_was_replaced_gets_another_handle(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients begin again, though the new log may have the same offsets."""
    append(log, inserts(10, "a"))
    monkeypatch.setattr("flushtracker.serve.poller._REOPEN_S", 0.2)
    async with serving(log) as server:
        client = Client(USERS)
        await client.sync(server)
        Path(log).rename(tmp_path / "gone")
        create_shape_log(log)
        append(log, inserts(10, "z"))
        while not client.conflicts:
            await client.step(server)
        await client.sync(server)
        assert set(client.rows) == {"z"}


async def test_columns_that_a_client_does_not_know_begin_again(log: str) -> None:
    """A client learns the types once, so other ones need another handle."""
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        client = Client(USERS)
        await client.sync(server)
        table = table_entry()
        columns = tuple(replace(column, type_oid=20) for column in table.binding.columns)
        again(log, replace(table, binding=replace(table.binding, columns=columns)), 5)
        await server.served.parts.poller.current(fresh=True)
        await client.step(server)
        assert client.conflicts == 1
        first = await client.step(server)
        assert json.loads(first.headers["electric-schema"])["id"]["type"] == "int8"


def events_of(response: Response) -> list[Any]:
    return [json.loads(line[6:]) for line in response.body.decode().split("\n\n") if line.startswith("data: ")]


async def test_event_stream_says_up_to_date_after_each_part(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the LSN of which the client makes its next offset; it ends after a while, and after one of these."""
    append(log, inserts(10, "a"))
    monkeypatch.setattr(event_stream, "STREAM_S", 2.0)
    monkeypatch.setattr(event_stream, "ALIVE_S", 0.2)
    async with serving(log) as server:
        client = Client(USERS)
        await client.sync(server)
        query = {**client.query(live=True), "live_sse": "true", "experimental_live_sse": "true"}
        found = Response()
        stream = asyncio.create_task(server.get(query, into=found))
        while not found.chunks:
            await asyncio.sleep(0.01)
        for tx in (20, 30):
            append(log, inserts(tx, f"k{tx}"))
            while f'"global_last_seen_lsn":"{tx}"'.encode() not in found.body:
                await asyncio.sleep(0.01)
        await stream
        assert found.headers["content-type"] == "text/event-stream"
        assert found.headers["cache-control"] == "no-store"
        assert b": alive\n\n" in found.body
        events = events_of(found)
        assert [event["headers"].get("global_last_seen_lsn") for event in events] == ["10", None, "20", None, "30"]
        append(log, [item((40, 0), "truncate"), commit(40)])
        await server.served.parts.poller.current(fresh=True)
        response = await server.get({**query, "offset": "30_0"})
        assert response.status == 409


async def test_event_stream_says_up_to_date_only_at_the_end(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after each of the pages of a log that the server has seen more of."""
    for module in ("body", "log_pages"):
        monkeypatch.setattr(f"flushtracker.serve.{module}.PAGE_BYTES", 200)
    monkeypatch.setattr(event_stream, "STREAM_S", 0.0)
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        client = Client(USERS)
        await client.sync(server)
        for tx in (20, 30, 40, 50):
            append(log, inserts(tx, f"k{tx}"))
        await server.served.parts.poller.current(fresh=True)
        response = await server.get({**client.query(live=True), "live_sse": "true"})
        events = events_of(response)
        assert [event["headers"].get("global_last_seen_lsn") for event in events] == [None] * 4 + ["50"]


async def test_caches_keep_only_what_they_may_give_again(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour for a part that is followed by others, seconds for a live one, and nothing for who begins again."""
    for module in ("body", "log_pages"):
        monkeypatch.setattr(f"flushtracker.serve.{module}.PAGE_BYTES", 200)
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        client = Client(USERS)
        await client.sync(server)
        for tx in (20, 30, 40):
            append(log, inserts(tx, f"k{tx}"))
        await server.served.parts.poller.current(fresh=True)
        handle = str(client.handle)
        later = {**USERS, "offset": "10_0", "handle": handle}
        brief = "public, max-age=5, stale-while-revalidate=5"
        for query, expected in (
            (later, "public, max-age=3600, immutable"),
            ({**later, "live": "true"}, brief),
            ({**USERS, "offset": "-1"}, brief),
            ({**USERS, "offset": "-1", "handle": handle}, "no-store"),
            ({**USERS, "offset": "-1", "expired_handle": handle}, "no-store"),
            ({**USERS, "offset": "now", "expired_handle": handle}, "no-store"),
        ):
            response = await server.get(query)
            assert (response.status, response.headers["cache-control"]) == (200, expected), query


async def test_client_that_was_told_begins_with_rows_as_of_its_request(log: str) -> None:
    """Kept ones are for those who have seen nothing yet."""
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        client, late = Client(USERS), Client(USERS)
        await client.sync(server)
        append(log, inserts(20, "b"))
        sent_lsn = await server.get({**USERS, "offset": "-1", "handle": str(client.handle)})
        assert sent_lsn.headers["electric-offset"] == "20_0"
        await late.step(server)
        assert late.offset == "20_0"


async def test_looks_that_requests_force_are_limited(log: str) -> None:
    """However many ask for one; and none is waited for once the server stops."""
    async with serving(log) as server:
        poller = server.served.parts.poller
        poller._poll_s = 1_000
        began = time.monotonic()
        for _ in range(10):
            await poller.current(fresh=True)
        assert time.monotonic() - began > 0.4
        waiting = asyncio.create_task(poller.current(fresh=True))
        await asyncio.sleep(0)
        began = time.monotonic()
        poller.close()
        for each in (waiting, poller.current(fresh=True)):
            with pytest.raises(UnavailableError, match="stops"):
                await each
        assert time.monotonic() - began < 5
        assert (await server.get({"shape": "unknown", "offset": "-1"})).status == 503


async def test_reason_of_another_source_is_not_told(log: str) -> None:
    """The shape has ended for both; only the reason of the source that is served is told."""
    mine = shape_entry(removed_at=LogOffset(12, 0), ended_because="mine")
    other = replace(mine, source="z/1/other", ended_because="theirs")
    again(log, mine, 5)
    again(log, other, 6)
    async with serving(log, source=mine.source) as server:
        response = await server.get({**USERS, "offset": "-1"})
        assert (response.status, "because mine" in response.json["message"]) == (410, True)


def test_files_count_until_their_last_page_is_dropped() -> None:
    """Pages share a file, whose place on the disk is free only then."""
    file = PageFile()
    file.append(b"x" * 30)
    kept = PageCache(1_000_000, 1_000)
    kept.add(PageKey("d", 1, 0), [Page(Body(b"", file, 10 * n, 10), n + 1) for n in range(3)])
    for key in range(3):
        assert kept.disk_bytes == 30
        kept.drop(PageKey("d", 1, key))
    assert (kept.disk_bytes, len(kept), kept.memory_bytes) == (0, 0, 0)


async def test_files_that_are_being_sent_are_limited(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow clients keep them open; whoever gets one of these is not refused."""
    monkeypatch.setattr("flushtracker.serve.sent_files.MOST_FILES", 1)
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        files, slow = server.served.app.files, PageFile()
        with files.sending(Body(b"", slow), lambda: None), files.sending(Body(b"", slow), lambda: None):
            response = await server.get({**USERS, "offset": "-1"})
            assert (response.status, response.headers["retry-after"]) == (503, "5")
        assert (await server.get({**USERS, "offset": "-1"})).status == 200
        assert not files


async def test_bytes_that_are_being_sent_are_limited(log: str) -> None:
    """Whatever they are, one file is sent."""
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        files, slow = server.served.app.files, PageFile()
        files._most_bytes = 8
        slow.append(b"123456789")
        with files.sending(Body(b"", slow), lambda: None), files.sending(Body(b"", slow), lambda: None):
            assert (await server.get({**USERS, "offset": "-1"})).status == 503
        assert (await server.get({**USERS, "offset": "-1"})).status == 200


async def test_no_room_for_temporary_files_is_a_503(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full when Python looked for a folder for them is looked at again."""

    def full() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    append(log, inserts(10, "a"))
    async with serving(log) as server:
        with monkeypatch.context() as patched:
            patched.setattr("tempfile.tempdir", None)
            patched.setattr("tempfile._get_default_tempdir", full)
            response = await server.get({**USERS, "offset": "-1"})
            assert (response.status, response.headers["retry-after"]) == (503, "2")
        assert (await server.get({**USERS, "offset": "-1"})).status == 200


async def test_unchanged_answer_is_not_sent_again(log: str) -> None:
    """By its etag; answers that may change are kept for seconds, pages that cannot for an hour, errors never."""
    append(log, inserts(10, "a"))
    async with serving(log) as server:
        query = {**USERS, "offset": "-1"}
        first = await server.get(query)
        assert first.headers["cache-control"] == "public, max-age=5, stale-while-revalidate=5"
        etag = first.headers["etag"].encode()
        for given in (b"*", b'"x", W/' + etag, etag):
            headers = {b"host": b"localhost", b"if-none-match": given}
            known = await server.get(query, headers=headers)
            assert (known.status, known.body) == (304, b"")
            assert known.headers["electric-offset"] == "10_0"
        append(log, inserts(20, "b"))
        await server.served.parts.poller.current(fresh=True)
        changed = await server.get(query, headers=headers)
        assert changed.status == 200
