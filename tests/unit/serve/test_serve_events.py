"""Server-sent events: what a look finds reaches the client at once, whatever is being done for it at that moment."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from flushtracker.serve import body, event_stream
from flushtracker.serve.body import Body, Page, PageFile, join
from flushtracker.serve.follower import Follower
from flushtracker.serve.shape_answers import ShapeAnswers, spread_s
from tests.support.sample_registry import register, shape_entry, table_entry
from tests.support.serve_client import Client, Response, Server, serving
from tests.support.shape_log_rows import append, inserts

_MOMENTS: Final = ("status", "up-to-date", "read", "change", "wait")


@pytest.fixture
def log(log: str) -> str:
    register(log, shape_entry(), table_entry())
    append(log, inserts(10, "a"))
    return log


class _Stream:
    """A client of events, for which something happens at one moment, once."""

    def __init__(self, server: Server, moment: str, happens: Callable[[], Awaitable[None]]) -> None:
        self._server, self._moment, self._happens = server, moment, happens
        self.body = b""
        self.gone = asyncio.Event()
        self._told = asyncio.Condition()

    async def at(self, moment: str) -> None:
        if moment == self._moment:
            self._moment = ""
            await self._happens()

    async def run(self, query: bytes) -> None:
        """Ask, and take all that is sent."""
        scope = {
            "type": "http",
            "method": "GET",
            "raw_path": b"/v1/shape",
            "query_string": query,
            "headers": [(b"host", b"localhost")],
            "state": {},
        }

        async def receive() -> dict[str, Any]:
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                await self.at("status")
                return
            part: bytes = message["body"]
            await self.at("change" if b'"key"' in part else "up-to-date")
            async with self._told:
                self.body += part
                self._told.notify_all()

        await self._server.served.app(scope, receive, send)

    async def until(self, tx: int) -> None:
        """Wait until the client has this transaction."""
        async with self._told:
            await asyncio.wait_for(
                self._told.wait_for(lambda: f'"global_last_seen_lsn":"{tx}"'.encode() in self.body), 120
            )


@pytest.mark.parametrize("moment", _MOMENTS)
async def test_change_that_a_look_finds_meanwhile_is_sent_at_once(
    log: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the status, an up-to-date, or the change before is sent, while that is read, and while nothing is done.

    Nothing else wakes the stream: neither a comment nor its end, nor another change.
    """
    monkeypatch.setattr(event_stream, "ALIVE_S", 1e6)
    monkeypatch.setattr(event_stream, "STREAM_S", 1e6)
    async with serving(log) as server:
        poller = server.served.parts.poller
        client = Client({"shape": "users"})
        await client.sync(server)
        txs = [10]

        async def commit() -> None:
            txs.append(txs[-1] + 10)
            append(log, inserts(txs[-1], f"k{txs[-1]}"))
            await poller.current(fresh=True)

        stream, page = _Stream(server, moment, commit), ShapeAnswers.page_until

        async def read(answers: ShapeAnswers, follower: Follower, disconnected: "asyncio.Future[None]") -> Page:
            found = await page(answers, follower, disconnected)
            await stream.at("read" if follower.has_more else "")
            return found

        monkeypatch.setattr(ShapeAnswers, "page_until", read)
        query = "&".join(f"{name}={value}" for name, value in client.query(live=True).items())
        running = asyncio.create_task(stream.run(f"{query}&live_sse=true".encode()))
        await stream.until(10)
        if moment not in {"status", "up-to-date"}:
            await commit()
        await stream.until(20)
        while not poller.waiting:
            await asyncio.sleep(0.01)
        await stream.at("wait")
        await stream.until(txs[-1])
        stream.gone.set()
        await running
        assert len(txs) == 2 + (moment not in {"status", "up-to-date"})
        assert poller.waiting == 0


async def test_events_use_files_that_are_limited(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose first part has no room gets a 503; the stream of one whose next part has none ends."""
    monkeypatch.setattr("flushtracker.serve.sent_files.MOST_FILES", 1)
    monkeypatch.setattr("flushtracker.serve.body.SMALL_BYTES", 10)
    async with serving(log) as server:
        poller, files = server.served.parts.poller, server.served.app.files
        client = Client({"shape": "users"})
        await client.sync(server)
        append(log, inserts(20, "b"))
        await poller.current(fresh=True)
        query = {**client.query(live=True), "live_sse": "true"}
        with files.sending(Body(b"", PageFile()), lambda: None):
            assert (await server.get(query)).status == 503
        found = Response()
        stream = asyncio.create_task(server.get(query, into=found))
        while not poller.waiting:
            await asyncio.sleep(0.01)
        assert not files
        with files.sending(Body(b"", PageFile()), lambda: None):
            append(log, inserts(30, "c"))
            await stream
        assert b'"global_last_seen_lsn":"20"' in found.body
        assert b'"c"' not in found.body
        assert not files


def test_events_of_any_parts_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a body is cut, also within what separates two messages."""
    messages = [b'{"a":","}', b'{"b":1}', b'{"c":",,"}']
    expected = b"".join(b"data: " + message + b"\n\n" for message in messages)
    for size in range(1, 40):
        monkeypatch.setattr(body, "SLICE_BYTES", size)
        assert b"".join(event_stream._events(Body.of(join(messages)))) == expected
    assert list(event_stream._events(Body())) == []


def test_streams_that_began_together_do_not_end_together() -> None:
    """Four thousand of them reconnected in the same second; the kernel dropped what did not fit into its queue."""
    ends = Counter(int(spread_s(event_stream.STREAM_S)) for _ in range(4_000))
    assert 45 <= min(ends) <= max(ends) <= 60
    assert max(ends.values()) < 600
