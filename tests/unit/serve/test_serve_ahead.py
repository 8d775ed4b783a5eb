"""Clients that another server has shown more than the log has: they wait for it, and never get older rows.

The stories are those of a fleet in which some servers show changes before the log has them.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from flushtracker.events.registry_events import BEGUN_AGAIN, ShapeEntry
from flushtracker.serve.handle import Handle
from flushtracker.wal.log_offset import LogOffset
from tests.support.folded_log import dated, folded
from tests.support.sample_registry import again, note, register, shape_entry, table_entry, taken, wanted_entry
from tests.support.serve_client import Client, Response, Server, serving
from tests.support.shape_log_rows import SOURCE, append, commit, inserts, item, snapshot_rows
from tests.support.snapshot_log import append_snapshot

USERS = {"shape": "users"}
_LONG_S = 600.0
_SHORT_S = 0.05
_MOST = 2**63 - 1


@pytest.fixture
def log(log: str) -> str:
    begin(log)
    return log


def begin(log: str) -> None:
    register(log, shape_entry(), table_entry())
    append(log, dated(inserts(10, "a")))


async def begun(server: Server) -> Client:
    client = Client(USERS)
    await client.sync(server)
    return client


def show(client: Client, tx: int, *keys: str) -> None:
    """Another server shows it transactions that the log has yet to get, the last of them ``tx``."""
    client.offset, client.is_up_to_date = f"{tx}_0", True
    client.rows |= {key: {"id": key} for key in keys}


@asynccontextmanager
async def asking(server: Server, client: Client, *, live: bool) -> AsyncIterator["asyncio.Task[Response]"]:
    """A request that waits."""
    waiting = asyncio.create_task(client.step(server, live=live))
    while not server.served.parts.poller.waiting:
        assert not waiting.done(), (await waiting).body
        await asyncio.sleep(0.01)
    yield waiting
    assert (await asyncio.wait_for(waiting, 120)).status in {200, 409}


async def seen(server: Server) -> None:
    await server.served.parts.poller.current(fresh=True)


async def all_seen(server: Server) -> None:
    """Whoever waits for what the log has now has been woken, and may have been answered."""
    await seen(server)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_client_ahead_waits_for_what_follows(log: str) -> None:
    """Not for what it was shown already, which the log gets meanwhile."""
    async with serving(log, live_s=_LONG_S) as server:
        client = await begun(server)
        show(client, 30, "b", "c")
        async with asking(server, client, live=True) as waiting:
            for tx, key in ((20, "b"), (30, "c")):
                append(log, inserts(tx, key))
                await all_seen(server)
                assert not waiting.done()
            append(log, inserts(40, "d"))
        assert (client.conflicts, client.offset, set(client.rows)) == (0, "40_0", {"a", "b", "c", "d"})
        assert [message["key"] for message in (await waiting).json[:-1]] == ["d"]


async def test_client_ahead_is_up_to_date_in_the_end(log: str) -> None:
    """At its own offset, also if it does not wait; and no cache keeps that for longer than seconds."""
    async with serving(log, live_s=_SHORT_S) as server:
        client = await begun(server)
        show(client, 30, "b")
        for live in (True, False, True):
            response = await client.step(server, live=live)
            assert (response.status, client.offset, client.is_up_to_date) == (200, "30_0", True)
            assert response.headers["cache-control"] == "public, max-age=5, stale-while-revalidate=5"
        assert set(client.rows) == {"a", "b"}


async def test_events_of_a_client_ahead_begin_after_what_it_has(log: str) -> None:
    """Nothing is sent twice, and its LSN is never below its offset."""
    async with serving(log) as server:
        client = await begun(server)
        show(client, 30, "b")
        gone, into = asyncio.Event(), Response()
        query = {**client.query(live=True), "live_sse": "true"}
        stream = asyncio.create_task(server.get(query, gone=gone, into=into))
        for tx, key in ((20, "-"), (30, "b"), (40, "c")):
            append(log, inserts(tx, key))
            await seen(server)
        while b'"global_last_seen_lsn":"40"' not in into.body:
            await asyncio.sleep(0.01)
        gone.set()
        await stream
        events = [json.loads(line[6:]) for line in into.body.split(b"\n\n") if line.startswith(b"data: ")]
        told = [each.get("key", each["headers"].get("global_last_seen_lsn")) for each in events]
        assert told == ["30", "c", "40"]


async def test_each_request_another_server(log: str) -> None:
    """One of them looks only when a request makes it: a client that goes from one to the other begins never again."""
    async with serving(log, live_s=_SHORT_S) as one, serving(log, live_s=_SHORT_S) as other:
        client = await begun(one)
        await seen(other)
        other.served.parts.poller._poll_s = 1_000
        await seen(other)
        for tx in range(20, 100, 10):
            key = f"k{tx}"
            if tx % 20:
                append(log, inserts(tx, key))
                await seen(one)
                await client.step(one)
            else:
                show(client, tx, key)
            for live in (True, False):
                response = await client.step(other, live=live)
                assert (response.status, client.offset) == (200, f"{tx}_0")
            if not tx % 20:
                append(log, inserts(tx, key))
        await seen(other)
        await client.sync(other)
        assert (client.conflicts, set(client.rows)) == (0, {"a", *(f"k{tx}" for tx in range(20, 100, 10))})


async def test_restored_older_log_409(log: str) -> None:
    """It waits as long as the log may still get there, and begins again once that has gone on without it."""
    older = f"{log}_older"
    shutil.copytree(log, older)
    append(log, inserts(30, "b"))
    async with serving(log) as server:
        client = await begun(server)
        assert set(client.rows) == {"a", "b"}
    shutil.rmtree(log)
    shutil.copytree(older, log)
    async with serving(log, live_s=_LONG_S) as server:
        async with asking(server, client, live=True) as waiting:
            append(log, inserts(20, "-"))
            await all_seen(server)
            assert not waiting.done()
            append(log, inserts(40, "c"))
        assert ((await waiting).status, client.conflicts) == (409, 1)
        await client.sync(server)
        assert (client.offset, set(client.rows)) == ("40_0", {"a", "-", "c"})
        # So does who comes only after that.
        late = Client(USERS, offset="30_0", handle=client.handle)
        assert (await late.step(server)).status == 409


async def test_offset_that_the_log_has_passed_is_one_of_its_own(log: str) -> None:
    """A transaction's, where it begins, or one up to the cut: none of these begins again."""
    incarnation = replace(shape_entry().definition, incarnation=2)
    starts_after = LogOffset(13, 0)
    again(log, replace(shape_entry(), starts_after=starts_after, definition=incarnation), 5)
    begun_again = replace(taken(2, "12:12:", 13), incarnation=2, starts_after=13)
    append(log, snapshot_rows(begun_again, {"a": {"id": "a"}}))
    async with serving(log) as server:
        client = await begun(server)
        assert client.offset == "13_0"
        append(log, inserts(20, "b"))
        append(log, inserts(30, "c"))
        note(log, 25)
        await seen(server)
    offsets = {"13_0": {"a", "b", "c"}, "20_0": {"a", "c"}, "24_0": {"a", "c"}, "25_0": {"a", "c"}, "30_0": {"a"}}
    for offset, rows in offsets.items():
        # Another server, which has kept nothing.
        async with serving(log) as server:
            follower = Client(USERS, offset=offset, handle=client.handle, rows={"a": {"id": "a"}})
            await follower.sync(server)
            assert (follower.conflicts, set(follower.rows)) == (0, rows)
            late = Client(USERS, offset="26_0", handle=client.handle)
            assert (await late.step(server)).status == 409


@pytest.mark.parametrize("is_reached_by_a_cut", [False, True])
async def test_begin_again_not_older(log: str, *, is_reached_by_a_cut: bool) -> None:
    """After a 409 for whatever, here a column that has another type, rows come from a log that has what was shown."""
    async with serving(log, live_s=_LONG_S) as server, serving(log, live_s=_SHORT_S) as other:
        client = await begun(server)
        show(client, 30, "c")
        binding = table_entry().binding
        column = replace(binding.columns[-1], type_oid=23)
        again(log, replace(table_entry(), binding=replace(binding, columns=(*binding.columns[:-1], column))), 5)
        assert (await client.step(server)).status == 409
        assert str(client.handle).endswith("-0-0-30")
        refused = await other.get(client.query(live=False))
        assert refused.status == 503
        assert (refused.headers["retry-after"], refused.headers["cache-control"]) == ("2", "no-store")
        async with asking(server, client, live=False) as waiting:
            append(log, inserts(20, "b"))
            await all_seen(server)
            assert not waiting.done()
            note(log, 35) if is_reached_by_a_cut else append(log, inserts(30, "c"))
        assert (await waiting).headers["cache-control"] == "no-store"
        assert set(client.rows) == ({"a", "b"} if is_reached_by_a_cut else {"a", "b", "c"})
        # Clients of all offsets go on under the same address.
        assert str(client.handle).endswith("-0-0")


async def test_begin_again_with_changes_alone_is_not_older(log: str) -> None:
    """Without the rows, it also begins where it was."""
    async with serving(log, live_s=_SHORT_S) as server:
        handle = Handle.parse(str((await begun(server)).handle))
        for start in ({"offset": "now"}, {"offset": "-1", "log": "changes_only"}):
            for sent in ("handle", "expired_handle"):
                query = {**USERS, **start, sent: str(replace(handle, generation=1, shown=30))}
                assert (await server.get(query)).status == 503
        append(log, inserts(30, "b"))
        assert (await server.get(query)).headers["electric-offset"] == "30_0"


async def test_handle_with_position_of_other_source(log: str) -> None:
    """An LSN means nothing in another source: who begins there waits for nothing, with a handle that has none."""
    async with serving(log, live_s=_LONG_S) as server:
        client = await begun(server)
        show(client, 30, "b")
        before = client.handle
        again(log, replace(shape_entry(), source=f"{SOURCE}/1", starts_after=LogOffset(4, 0)), 5)
        append(log, [item((5, 0), "insert", "x", {"id": "x"}, source=f"{SOURCE}/1"), commit(5, source=f"{SOURCE}/1")])
        await client.step(server)
        assert (client.conflicts, str(client.handle).count("-")) == (1, 2)
        await client.sync(server)
        assert (client.offset, set(client.rows)) == ("5_0", {"x"})
        handle = str(replace(Handle.parse(str(before)), generation=1, shown=30))
        for sent in ("handle", "expired_handle"):
            assert (await server.get({**USERS, "offset": "-1", sent: handle})).status == 200


async def test_source_replaced_while_ahead(log: str) -> None:
    """Who waits is told, and begins with the rows of the source that goes on."""
    async with serving(log, live_s=_LONG_S) as server:
        client = await begun(server)
        show(client, 30, "b")
        async with asking(server, client, live=True) as waiting:
            again(log, replace(shape_entry(), source=f"{SOURCE}/1", starts_after=LogOffset(4, 0)), 5)
            other = [item((5, 0), "insert", "x", {"id": "x"}, source=f"{SOURCE}/1"), commit(5, source=f"{SOURCE}/1")]
            append(log, other)
        assert (await waiting).status == 409
        await client.sync(server)
        assert (client.offset, set(client.rows)) == ("5_0", {"x"})


async def test_shape_removed_while_ahead(log: str) -> None:
    """Who waits stops, whatever of its last transaction the log gets."""
    async with serving(log, live_s=_LONG_S) as server:
        client = await begun(server)
        show(client, 30, "b")
        told = Client(USERS, handle=str(replace(Handle.parse(str(client.handle)), generation=1, shown=30)))
        asked = [asyncio.create_task(each.step(server, live=True)) for each in (client, told)]
        while server.served.parts.poller.waiting < 2:
            await asyncio.sleep(0.01)
        again(log, replace(shape_entry(), removed_at=LogOffset(31, 0)), 5)
        assert [(await asyncio.wait_for(each, 120)).status for each in asked] == [410, 410]


async def test_shape_begun_again_while_ahead(log: str) -> None:
    """The next incarnation begins after what was shown, so nobody waits for that."""
    async with serving(log, live_s=_SHORT_S) as server:
        client = await begun(server)
        show(client, 30, "b")
        again(log, replace(shape_entry(), removed_at=LogOffset(31, 0), ended_because=BEGUN_AGAIN), 5)
        assert (await client.step(server)).status == 503
        definition = replace(shape_entry().definition, incarnation=2, snapshot=True)
        again(log, ShapeEntry(SOURCE, definition, 7, LogOffset(31, 0)), 6)
        snapshot = replace(taken(1, "32:32:", 40), incarnation=2, starts_after=31)
        append(log, snapshot_rows(snapshot, {"z": {"id": "z"}}))
        await seen(server)
        assert (await client.step(server)).status == 409
        assert str(client.handle).endswith("-30")
        await client.sync(server)
        assert (client.offset, set(client.rows)) == ("31_0", {"z"})


async def test_fold_while_ahead(log: str) -> None:
    """A client that began before the fold goes on after it."""
    async with serving(log, live_s=_LONG_S) as server:
        client = await begun(server)
        for change in (inserts(12, "b"), [item((14, 0), "delete", "b"), commit(14)], inserts(20, "b")):
            append(log, dated(change))
        await seen(server)
        await client.step(server)
        show(client, 40, "c")
        async with asking(server, client, live=True) as waiting:
            assert folded(log, 5, 27) == 1
            append(log, inserts(40, "c"))
            await all_seen(server)
            assert not waiting.done()
            append(log, inserts(50, "d"))
        assert (client.conflicts, client.offset, set(client.rows)) == (0, "50_0", {"a", "b", "c", "d"})
        assert str(client.handle).endswith("-0-0")


async def test_snapshot_again_while_ahead(log: str) -> None:
    """It has transactions that the client lacks: who waits begins again, once the log has what it was shown."""
    again(log, wanted_entry(), 5)
    assert append_snapshot(log, taken(1, "8:8:", 9), {})
    async with serving(log, live_s=_LONG_S) as server:
        client = await begun(server)
        show(client, 40, "c")
        async with asking(server, client, live=True) as waiting:
            assert append_snapshot(log, taken(2, "35:35:", 36), {"a": {"id": "a"}, "b": {"id": "b"}})
            append(log, inserts(40, "c"))
            await all_seen(server)
            assert not waiting.done()
            append(log, inserts(50, "d"))
        assert (await waiting).status == 409
        await client.sync(server)
        assert (client.conflicts, client.offset, set(client.rows)) == (1, "50_0", {"a", "b", "c", "d"})


async def test_log_without_the_client_s_snapshot_is_an_older_copy(log: str) -> None:
    """It begins again at once, and does not wait for what such a log may never have."""
    async with serving(log, live_s=_SHORT_S) as server:
        handle = Handle.parse(str((await begun(server)).handle))
        client = Client(USERS, offset="30_0", handle=str(replace(handle, attempt=1)))
        await client.step(server, live=True)
        assert (client.conflicts, client.handle) == (1, str(handle))
        client.handle = str(replace(handle, attempt=1, shown=30))
        await client.sync(server)
        assert client.offset == "10_0"


async def test_forged_positions_hold_nothing(log: str) -> None:
    """They wait as any live client does, in no other's way, and what they were told is kept for nobody."""
    async with serving(log, live_s=_SHORT_S) as server:
        client = await begun(server)
        parts = server.served.parts
        parts.poller._poll_s = 1_000
        await seen(server)
        pages, looks = len(parts.pages), parts.poller.polls
        handle = Handle.parse(str(client.handle))
        query: dict[str, Any] = {**USERS, "handle": str(handle), "offset": f"{_MOST}_0", "live": "true"}
        asked = [asyncio.create_task(server.get(query)) for _ in range(200)]
        shown = {**USERS, "offset": "-1", "handle": str(replace(handle, generation=1, shown=_MOST))}
        asked += [asyncio.create_task(server.get(shown)) for _ in range(200)]
        answers = [await each for each in asked]
        assert [each.status for each in answers] == [200] * 200 + [503] * 200
        assert {each.headers["cache-control"].partition(",")[0] for each in answers} == {"public", "no-store"}
        assert not any("immutable" in each.headers["cache-control"] for each in answers)
        assert (parts.poller.waiting, len(parts.pages), parts.log_flights.running) == (0, pages, 0)
        assert parts.poller.polls - looks < 50
        append(log, inserts(20, "b"))
        await seen(server)
        await client.sync(server)
        assert set(client.rows) == {"a", "b"}


async def test_server_that_stops_lets_those_who_begin_again_go(log: str) -> None:
    """They ask another one."""
    async with serving(log, live_s=_LONG_S) as server:
        handle = Handle.parse(str((await begun(server)).handle))
        query = {**USERS, "offset": "-1", "handle": str(replace(handle, generation=1, shown=30))}
        asked = asyncio.create_task(server.get(query))
        while not server.served.parts.poller.waiting:
            await asyncio.sleep(0.01)
        server.served.parts.poller.close()
        assert (await asyncio.wait_for(asked, 120)).status == 503
