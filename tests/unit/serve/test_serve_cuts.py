"""The LSN of answers of HTTP: up to where a client has all of a shape, for those who combine several."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.support.cut_clients import CutClient
from tests.support.sample_registry import note, register, shape_entry, table_entry
from tests.support.serve_client import Response, Server, serving
from tests.support.shape_log_rows import Row, append, commit, item

USERS, ORDERS = {"shape": "users"}, {"shape": "orders"}


@pytest.fixture
def log(log: str) -> str:
    register(log, shape_entry(), table_entry())
    return log


def change(tx: int, shape_id: str = "users") -> list[Row]:
    row = item((tx, 0), "insert", str(tx), {"id": str(tx)}, shape_id=shape_id)
    return [row, commit(tx, shape_id=shape_id)]


def lsn(response: Response) -> int | None:
    """What the last message says."""
    text = response.json[-1]["headers"].get("global_last_seen_lsn")
    return None if text is None else int(text)


async def seen(server: Server) -> None:
    await server.served.parts.poller.current(fresh=True)


async def test_answer_says_up_to_which_lsn_the_client_has_its_shape(log: str) -> None:
    """The cut, or the shape's own last transaction if that is later; nothing before there is a cut."""
    register(log, shape_entry("orders"))
    append(log, change(10))
    async with serving(log) as server:
        users, orders = CutClient(USERS), CutClient(ORDERS)
        assert lsn(await users.step(server)) is None
        note(log, 35)
        await seen(server)
        assert [lsn(await users.step(server)), lsn(await orders.step(server))] == [35, 35]
        append(log, change(50))
        await seen(server)
        # What is durable of another shape says nothing about this one, which may lack a transaction below it.
        assert [lsn(await users.step(server)), lsn(await orders.step(server))] == [50, 35]
        assert (users.offset, orders.offset) == ("50_0", "0_0")


async def test_answer_with_another_lsn_is_another_one(log: str) -> None:
    """Or a client would be told that its old copy is right, and never learn of a later cut."""
    append(log, change(10))
    async with serving(log) as server:
        client = CutClient(USERS)
        await client.sync(server)
        tags = list[str]()
        for cut in (35, 35, 45):
            note(log, cut)
            await seen(server)
            tags.append((await server.get(client.query(live=False))).headers["etag"])
        assert tags[0] == tags[1] != tags[2]


async def test_client_goes_on_after_a_cut_that_its_shape_has_no_transaction_at(log: str) -> None:
    """With any server: one that lacks the cut looks again. What follows is read once for all who wait."""
    append(log, change(10))
    async with serving(log) as server, serving(log) as other:
        client, second = CutClient(USERS), CutClient(USERS)
        for each in (client, second):
            await each.sync(other)
        note(log, 35)
        await seen(server)
        client.offset = "35_0"
        response = await client.step(other)
        assert (response.status, lsn(response), client.offset) == (200, 35, "35_0")
        append(log, change(40))
        await seen(server)
        for each in (client, second):
            await each.step(server)
            assert (set(each.rows), each.offset) == ({"10", "40"}, "40_0")


async def test_offset_ahead_of_log_and_cut_is_up_to_date(log: str) -> None:
    """Another server has shown the client more, which is its LSN, too; one that the log has passed begins again."""
    append(log, change(10))
    note(log, 35)
    async with serving(log) as server:
        client = CutClient(USERS)
        await client.sync(server)
        client.offset = "36_0"
        response = await client.step(server)
        assert (response.status, lsn(response), client.offset) == (200, 36, "36_0")
        append(log, change(40))
        await seen(server)
        assert (await client.step(server)).status == 409


async def test_an_older_registry_table_has_no_cut(log: str, tmp_path: Path) -> None:
    """It may lack the end of a shape that the cut has passed."""
    append(log, change(10))
    copy = str(tmp_path / "copy")
    shutil.copytree(f"{log}_shapes", copy)
    register(log, shape_entry("more"))
    note(log, 35)
    async with serving(log, copy) as server:
        assert lsn(await CutClient(USERS).step(server)) is None


async def test_client_that_asks_for_cuts_is_told_of_each(log: str) -> None:
    """Others wait for changes alone, and cost nothing while the database writes other tables."""
    append(log, change(10))
    note(log, 35)
    async with serving(log, live_s=50) as server:
        client, other = CutClient({**USERS, "cuts": "true"}), CutClient(USERS)
        for each in (client, other):
            await each.sync(server)
        assert (client.offset, other.offset) == ("35_0", "10_0")
        waiting = asyncio.create_task(other.step(server, live=True))
        for cut in (45, 55):
            sent_lsn = asyncio.create_task(client.step(server, live=True))
            while server.served.parts.poller.waiting < 2:
                await asyncio.sleep(0.01)
            note(log, cut)
            assert lsn(await sent_lsn) == cut
            assert client.offset == f"{cut}_0"
            assert not waiting.done()
        append(log, change(60))
        assert lsn(await waiting) == 60


async def test_events_tell_cuts_and_never_go_back(log: str) -> None:
    """A client goes on after the last LSN, so that is never below what it has got."""
    append(log, change(10))
    note(log, 5)
    async with serving(log) as server:
        client = CutClient({**USERS, "cuts": "true"})
        await client.sync(server)
        assert client.offset == "10_0"
        gone, into = asyncio.Event(), Response()
        query = {**client.query(live=True), "live_sse": "true"}
        stream = asyncio.create_task(server.get(query, gone=gone, into=into))

        def sent_lsn() -> list[str]:
            events = [json.loads(line[6:]) for line in into.body.split(b"\n\n") if line.startswith(b"data: ")]
            found = (event["headers"].get("global_last_seen_lsn") for event in events)
            return [each for each in found if each is not None]

        for cut, expected in ((5, "10"), (35, "35"), (45, "45"), (44, "45")):
            note(log, cut)
            while sent_lsn()[-1:] != [expected]:
                await asyncio.sleep(0.01)
        append(log, change(60))
        while sent_lsn()[-1] != "60":
            await asyncio.sleep(0.01)
        assert sent_lsn() == ["10", "35", "45", "60"]
        gone.set()
        await stream
