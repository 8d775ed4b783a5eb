"""A ``TailReader`` on a test's event loop: the events that it gets, what the tails have then, and whom it wakes."""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from flushtracker.config.serve_config import TailConfig
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.serve.tail.tail_reader import TailReader
from flushtracker.serve.tail.tails import Tails
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.shape_log_rows import SOURCE

_COMMIT: Final = Commit("2026-01-01T00:00:00.000000Z", 1)
_Found = TypeVar("_Found")


def whole_transaction(tx: int, follows: int, shape_id: str = "users", note: str = "é") -> ShapeChangesEvent:
    """The event of a transaction with one change, which follows another one of the same kind."""
    item = LogItem(LogOffset(tx, 0), "insert", '"public"."users"/"1"', {"id": "1", "note": note})
    return ShapeChangesEvent(
        *(SOURCE, shape_id),
        xid=tx,
        follows=LogOffset(follows, 0),
        last_log_offset=LogOffset(tx, 0),
        start=False,
        has_begin=True,
        commit=_COMMIT,
        items=(item,),
    )


async def until(condition: Callable[[], _Found | None], what: str) -> _Found:
    """Wait on the event loop, which goes on meanwhile."""
    deadline = time.monotonic() + 180
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)
    return found


class TailReading:
    """Shapes that are asked for, and their reader; close it when done.

    ``woken``: the shapes of each call of ``wake``, which keeps the loop busy for ``busy_s``.
    """

    def __init__(self, config: TailConfig, *asked: str, busy_s: float = 0.0) -> None:
        self.tails = Tails(64 << 20)
        for shape_id in asked:
            self.tails.ask((SOURCE, shape_id), 0)
        self.busy_s = busy_s
        self.woken: list[set[str]] = []
        self.reader = TailReader(config, self.tails, self._wake)

    def _wake(self, shape_ids: Collection[str]) -> None:
        self.tails.check_invariants()
        self.woken.append(set(shape_ids))
        time.sleep(self.busy_s)

    def transactions(self, shape_id: str = "users") -> list[int]:
        """Those that the shape's tail has."""
        tail: Any = self.tails._tails.get((SOURCE, shape_id))
        return [] if tail is None else [each.tx_offset for each in tail.after(0)]

    async def until_has(self, *transactions: int, shape_id: str = "users") -> None:
        await until(lambda: self.transactions(shape_id) == [*transactions], f"the tail has {transactions}")

    async def until_read(self) -> None:
        self.reader.start()
        await until(lambda: self.reader.problem is None, "the topic is read")
