"""Clients of ``serve`` that take little, but never nothing, so that no time limit of a connection ends them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flushtracker.serve.body import Body, PageFile
from flushtracker.serve.refusals import UnavailableError
from flushtracker.serve.sent_files import LATE_S, SentFiles
from tests.support.sample_registry import register, shape_entry, users_log
from tests.support.serve_client import Server, serving
from tests.support.shape_log_rows import append, commit, item


class _SlowClient:
    """Takes the first part of an answer, and the next one once it is cut off."""

    is_over_limit = is_closing = False
    has_unsent = True

    def __init__(self) -> None:
        self.has_begun, self.is_cut_off = asyncio.Event(), asyncio.Event()

    def abort(self) -> None:
        self.is_cut_off.set()

    def send_directly(self, _send: Callable[[int], int]) -> int:
        return 0

    async def ask(self, server: Server, query: bytes) -> None:
        path, headers = b"/v1/shape", [(b"host", b"localhost")]
        scope = {"type": "http", "method": "GET", "path": path.decode(), "raw_path": path, "query_string": query}
        await server.served.app({**scope, "headers": headers, "state": {"connection": self}}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self.is_cut_off.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.has_begun.set()
            await self.is_cut_off.wait()


def _large(shape_id: str) -> list[dict[str, object]]:
    row = item((10, 0), "insert", "a", {"id": "1", "name": "x" * 100_000}, shape_id=shape_id)
    return [row, commit(10, shape_id=shape_id)]


async def test_slow_clients_keep_no_file_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes the rows of a large shape byte by byte is cut off once those of another shape need the room."""
    monkeypatch.setattr("flushtracker.serve.sent_files.LATE_S", 0.0)
    log = users_log(tmp_path)
    register(log, shape_entry("other"))
    append(log, [*_large("users"), *_large("other")])
    async with serving(log) as server:
        files = server.served.app.files
        # Only the rows that were asked for last are kept.
        server.served.parts.states._limit = files._most_bytes = 0
        slow = _SlowClient()
        asking = asyncio.create_task(slow.ask(server, b"shape=users&offset=-1"))
        await slow.has_begun.wait()
        assert (await server.get({"shape": "users", "offset": "-1"})).status == 200
        assert not slow.is_cut_off.is_set()
        assert (await server.get({"shape": "other", "offset": "-1"})).status == 200
        assert slow.is_cut_off.is_set()
        await asking
        assert not files


async def test_clients_of_what_is_kept_are_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its place on the disk anyway: to cut them off would free nothing."""
    monkeypatch.setattr("flushtracker.serve.sent_files.LATE_S", 0.0)
    log = users_log(tmp_path)
    register(log, shape_entry("other"))
    append(log, [*_large("users"), *_large("other")])
    async with serving(log) as server:
        files = server.served.app.files
        files._most_bytes = 150_000
        slow = _SlowClient()
        asking = asyncio.create_task(slow.ask(server, b"shape=users&offset=-1"))
        await slow.has_begun.wait()
        assert (await server.get({"shape": "other", "offset": "-1"})).status == 200
        assert not slow.is_cut_off.is_set()
        slow.abort()
        await asking
        assert not files


def test_whoever_began_first_is_cut_off_first() -> None:
    """And nobody before the time that anybody has, in which who comes later is refused."""
    now_s, cut = 0.0, list[int]()
    files = SentFiles(10, lambda: now_s)

    def sending(number: int, length: int) -> Any:
        file = PageFile()
        file.append(b"x" * length)
        return files.sending(Body(b"", file), _noting(cut, number))

    with sending(1, 4):
        now_s = 1.0
        with sending(2, 4):
            now_s = LATE_S - 1
            with pytest.raises(UnavailableError), sending(3, 4):
                pass
            now_s = LATE_S
            with sending(4, 4):
                assert (cut, len(files)) == ([1], 2)
            assert len(files) == 1
    assert not files


def _noting(cut: list[int], number: int) -> Callable[[], None]:
    return lambda: cut.append(number)
