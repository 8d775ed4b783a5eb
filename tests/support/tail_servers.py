"""Servers with tails in this process, and what capture publishes of a log's rows."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime

from flushtracker.config.write_config import LogConfig
from flushtracker.serve.reads import LogReads
from flushtracker.serve.tail.tail_pages import TailPages
from flushtracker.serve.tail.tails import Tails
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.shape_log.shape_snapshot import ShapeKey
from flushtracker.wal.log_offset import LogOffset
from tests.support.serve_client import Server, serving
from tests.support.shape_log_rows import SOURCE, Row

_ITEM_COLUMNS = ("tx_offset", "op_offset", "operation", "key", "value", "old_value")


class PublishedRows:
    """Makes the events of ``shape_changes`` that become the rows of a log, each of which follows the one before."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._reached: dict[str, LogOffset] = {}

    def events(self, rows: Iterable[Row]) -> list[ChangeColumns]:
        """An event for each shape and transaction that the rows are of."""
        parts: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            parts.setdefault((str(row["shape_id"]), int(str(row["tx_offset"]))), []).append(row)
        return [self._event(shape_id, tx, part) for (shape_id, tx), part in parts.items()]

    def _event(self, shape_id: str, tx: int, rows: list[Row]) -> ChangeColumns:
        items = [row for row in rows if row["operation"] != COMMIT]
        columns = RowColumns(tuple([row[name] for row in items] for name in _ITEM_COLUMNS))
        follows = self._reached.get(shape_id, LogOffset.last_of(0))
        last = columns.last_offset if items else max(LogOffset(tx, 0), follows)
        is_commit = len(items) < len(rows)
        self._reached[shape_id] = reached = last.reached(is_commit=is_commit)
        return ChangeColumns(
            shape_id,
            int(str(rows[0]["xid"])),
            follows=follows,
            last_log_offset=last,
            reached=reached,
            start=follows.tx_offset != tx,
            commit_timestamp=datetime(2026, 1, 1).isoformat() if is_commit else None,  # noqa: DTZ001
            items=columns,
            schema=self.schema,
        )


def with_tail(server: Server, memory_bytes: int = 1_000_000) -> Tails:
    """Give a server a tail, whose events the test adds by :func:`publish`."""
    parts, served = server.served.parts, server.served
    pages = TailPages(Tails(memory_bytes, lambda: parts.poller.rounds.holding), parts.pages)
    parts.poller._published = pages.on_view
    server.replace(replace(parts, tail_pages=pages), served.answers._live_s)
    return pages.tails


def publish(server: Server, *events: ChangeColumns) -> int:
    """The server reads the events; return how many clients that woke."""
    tails = server.served.parts.tail_pages
    assert tails is not None
    woken = [event.shape_id for event in events if tails.tails.add(key_of(event.shape_id), event)]
    tails.tails.check_invariants()
    return server.served.parts.poller.wake(woken)


def schema_of(log: str, shape_id: str) -> str:
    """The digest of a shape's columns and types as the registry has them."""
    tables = LogReads(LogConfig(log, f"{log}_shapes"), None).open()
    tables.refresh()
    return str(tables.seen(shape_id).facts.schema_digest)


def key_of(shape_id: str) -> ShapeKey:
    return SOURCE, shape_id


@asynccontextmanager
async def serving_tail(log: str, live_s: float = 5.0) -> AsyncIterator[Server]:
    """A server with a tail."""
    async with serving(log, live_s=live_s) as server:
        with_tail(server)
        yield server
