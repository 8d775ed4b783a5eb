"""Clients of servers with tails get transactions before the log has them: by the same bytes, once, and in order."""

import asyncio
import json

import pytest

from tests.support.folded_log import dated
from tests.support.sample_registry import register, shape_entry, table_entry
from tests.support.serve_client import Client, Response, Server, serving
from tests.support.shape_log_rows import Row, append, commit, inserts, item
from tests.support.tail_servers import PublishedRows, publish, schema_of, serving_tail

USERS = {"shape": "users"}
_LONG_S = 600.0
_SHORT_S = 0.05


@pytest.fixture
def log(log: str) -> str:
    register(log, shape_entry(), table_entry())
    append(log, dated(inserts(10, "a")))
    return log


@pytest.fixture
def capture(log: str) -> PublishedRows:
    """It has published what the log has."""
    found = PublishedRows(schema_of(log, "users"))
    found.events(inserts(10, "a"))
    return found


async def begun(server: Server) -> Client:
    client = Client(USERS)
    await client.sync(server)
    # The tail begins once somebody has asked for what follows.
    await client.step(server)
    return client


async def waiting(server: Server, count: int = 1) -> None:
    while server.served.parts.poller.waiting < count:
        await asyncio.sleep(0.01)


async def test_waiting_client_gets_a_transaction_before_the_log_has_it(log: str, capture: PublishedRows) -> None:
    async with serving_tail(log, live_s=_LONG_S) as server:
        client = await begun(server)
        asking = asyncio.create_task(client.step(server, live=True))
        await waiting(server)
        assert publish(server, *capture.events(inserts(20, "b"))) == 1
        response = await asyncio.wait_for(asking, 120)
        assert (client.offset, client.is_up_to_date, set(client.rows)) == ("20_0", True, {"a", "b"})
        assert response.headers["cache-control"] == "public, max-age=5, stale-while-revalidate=5"
        assert server.served.parts.log_flights.started == 0
        pages = server.served.parts.tail_pages
        assert pages is not None
        assert (pages.answers, pages.unlinked) == (1, 1)


async def test_answers_of_a_tail_have_the_bytes_of_the_log(log: str, capture: PublishedRows) -> None:
    """Also for updates, deletes, NULLs, and several transactions at once."""
    rows: list[Row] = [
        item((20, 0), "insert", "b", {"id": "b", "a": 'a"b\\c\n', "b": None}),
        item((20, 2), "update", "a", {"id": "a", "a": "Grüße"}),
        commit(20),
        item((30, 0), "delete", "b", {"id": "b"}),
        commit(30),
    ]
    async with serving_tail(log) as tailed, serving(log) as plain:
        one, other = await begun(tailed), await begun(plain)
        publish(tailed, *capture.events(rows))
        of_tail = await one.step(tailed)
        append(log, dated(rows))
        await plain.served.parts.poller.current(fresh=True)
        of_log = await other.step(plain)
        assert of_tail.body == of_log.body
        assert of_tail.headers.keys() == of_log.headers.keys()
        assert tailed.served.parts.log_flights.started == 0


async def test_stream_of_events_goes_on_from_the_tail(log: str, capture: PublishedRows) -> None:
    """Each transaction once, whoever is first: the tail, or the log."""
    async with serving_tail(log) as server:
        client = await begun(server)
        gone, into = asyncio.Event(), Response()
        query = {**client.query(live=True), "live_sse": "true"}
        stream = asyncio.create_task(server.get(query, gone=gone, into=into))
        for tx in range(20, 100, 10):
            rows = inserts(tx, f"k{tx}")
            await waiting(server)
            if tx % 20:
                publish(server, *capture.events(rows))
            append(log, dated(rows))
            await server.served.parts.poller.current(fresh=True)
            if not tx % 20:
                publish(server, *capture.events(rows))
            while f'"key":"k{tx}"'.encode() not in into.body:
                await asyncio.sleep(0.01)
        gone.set()
        await stream
        events = [json.loads(line[6:]) for line in into.body.split(b"\n\n") if line.startswith(b"data: ")]
        assert [each["key"] for each in events if "key" in each] == [f"k{tx}" for tx in range(20, 100, 10)]


async def test_each_request_another_server(log: str, capture: PublishedRows) -> None:
    """Two with tails, and a plain one: nobody begins again, and nothing comes twice."""
    async with (
        serving_tail(log, live_s=_SHORT_S) as one,
        serving_tail(log, live_s=_SHORT_S) as other,
        serving(log, live_s=_SHORT_S) as plain,
    ):
        client = await begun(one)
        await begun(other)
        for tx in range(20, 200, 10):
            rows = inserts(tx, f"k{tx}")
            events = capture.events(rows)
            publish(one, *events)
            await client.step(one)
            publish(other, *events)
            for server in (other, plain, one):
                response = await client.step(server, live=True)
                assert (response.status, client.offset) == (200, f"{tx}_0")
            append(log, dated(rows))
        assert (client.conflicts, len(client.rows)) == (0, 19)


async def test_client_whose_transaction_the_log_has_passed_goes_on_only_if_it_is_known(
    log: str, capture: PublishedRows
) -> None:
    """A log was restored from an older copy, and continues without it: a client with it begins again."""
    async with serving_tail(log) as server:
        client = await begun(server)
        capture.events(inserts(20, "lost"))
        client.offset, client.rows["lost"] = "20_0", {"id": "lost"}
        for tx in (30, 40):
            rows = inserts(tx, f"k{tx}")
            append(log, dated(rows))
            publish(server, *capture.events(rows))
        await server.served.parts.poller.current(fresh=True)
        assert (await client.step(server)).status == 409
        await client.sync(server)
        assert set(client.rows) == {"a", "k30", "k40"}


async def test_large_pages_of_a_tail_are_in_files(
    log: str, capture: PublishedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flushtracker.serve.body.SMALL_BYTES", 10)
    async with serving_tail(log) as server:
        client = await begun(server)
        publish(server, *capture.events(inserts(20, "b")))
        await client.step(server)
        assert set(client.rows) == {"a", "b"}
        assert server.served.parts.pages.disk_bytes > 0
