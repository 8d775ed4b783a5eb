"""Followers over an upgrade: by positions, read by one release and then by another, and over HTTP."""

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Final, cast

import pyarrow as pa

from flushtracker.serve.handle import Handle
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.table.reader import ShapeLogReader
from tests.support.background import Background
from tests.support.installed_release import Release
from tests.support.log_follower import Follower, row_texts
from tests.support.serve_client import Client, RemoteServer
from tests.support.waiting import wait_until

_PROGRAM: Final = """
import json, sys
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shape_log.position import Position
log, shape_id, kept = json.load(sys.stdin)
read = ShapeLogReader(log).read_log(shape_id, None if kept is None else Position.parse(kept))
rows = read.rows.to_pylist()
print(json.dumps({"position": str(read.position), "rows": rows}, default=str))
"""
_TIMEOUT_S: Final = 60
_RETRY_S: Final = 0.1


@dataclass
class ReleaseReader:
    """Reads a log as the reader of a release does, in a process of that release for each read."""

    release: Release
    log: str

    def read_log(self, shape_id: str, position: Position | None) -> Any:
        kept = None if position is None else str(position)
        read = json.loads(self.release.run("-c", _PROGRAM, text=json.dumps([self.log, shape_id, kept])))
        return SimpleNamespace(position=Position.parse(read["position"]), rows=pa.Table.from_pylist(read["rows"]))


def poll_with(follower: Follower, releases: Iterable[Release]) -> None:
    """Let each release go on from the position that the one before has left."""
    for release in releases:
        follower.reader = cast("ShapeLogReader", ReleaseReader(release, follower.log))
        follower.poll()


class HttpFollower(Background):
    """A context manager in which a thread follows a shape over HTTP, and keeps its handle and offset whatever happens.

    What it cannot connect to, it asks again, as a browser does. An answer that the client's rules do not allow ends it.
    """

    def __init__(self, url: str, shape_id: str) -> None:
        super().__init__(self._play)
        self.shape_id = shape_id
        self._client = Client({"shape": shape_id})
        self._server = RemoteServer(url, _TIMEOUT_S)
        self.answered = list[float]()
        """When, in seconds since 1970."""
        self._handles = list[Handle]()

    def await_rows(self, expected: list[str]) -> None:
        """Wait until it has these rows; it may have been told to begin again after a TRUNCATE alone."""

        def has_rows() -> bool:
            self.raise_failure()
            return row_texts(self._client.rows.values()) == expected

        wait_until(has_rows, f"the rows of {self.shape_id} over HTTP", _TIMEOUT_S)
        first, last = self._handles[0], self._handles[-1]
        assert last.is_generation_of(first), f"a client of {self.shape_id} began with {first}, and has {last}"

    def _play(self) -> None:
        while not self.stopping.is_set():
            asyncio.run(self._follow())

    async def _follow(self) -> None:
        try:
            response = await self._client.step(self._server, live=True)
        except (OSError, HTTPException):
            await asyncio.sleep(_RETRY_S)
            return
        if response.status in {200, 409}:
            self.answered.append(time.time())
            self._handles.append(Handle.parse(self._client.handle or ""))
            return
        # Before its first transaction there is no log of the shape.
        later = {429, 503} if self._client.handle else {404, 429, 503}
        assert response.status in later, f"{response.status}: {response.body!r}"
        await asyncio.sleep(_RETRY_S)


def longest_gap(moments: Iterable[float], begin: float, end: float) -> float:
    """The longest time between a moment and the next one, of those that are partly between ``begin`` and ``end``.

    >>> longest_gap([1, 5, 6, 9, 20], 4, 8)
    4
    """
    return max((after - before for before, after in pairwise(moments) if after >= begin and before <= end), default=0)
