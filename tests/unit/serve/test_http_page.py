"""The exchange that ``docs/http.md`` shows: a server is sent its requests, and gives its answers."""

import asyncio
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.wal.log_offset import LogOffset
from tests.support.key_bindings import ID_KEY
from tests.support.sample_registry import register
from tests.support.serve_client import Response, Server, serving
from tests.support.shape_log_rows import SOURCE, Row, append, commit, item

_PAGE: Final = Path(__file__).parents[3] / "docs" / "http.md"
_EXCHANGES: Final = re.findall(r"```http\nGET (\S+)\n\nHTTP/1.1 200 OK\n(.*?)\n\n(.*?)\n```", _PAGE.read_text(), re.S)
_OWN: Final = ("electric-handle", "electric-cursor")
"""The headers that differ at each run."""
_ORDERS: Final = ("public", "orders")


def _changes(tx: int, xid: int, *changes: tuple[str, int, dict[str, str | None] | None]) -> list[Row]:
    """A transaction's rows; ``changes`` are operation, id and value."""
    rows = [
        item((tx, 2 * number), operation, f'"public"."orders"/"{row_id}"', value, shape_id="orders") | {"xid": xid}
        for number, (operation, row_id, value) in enumerate(changes)
    ]
    return [*rows, commit(tx, shape_id="orders")]


_TRANSACTIONS: Final = (
    _changes(
        23990008,
        741,
        ("insert", 1, {"id": "1", "state": "open"}),
        ("insert", 2, {"id": "2", "state": "open"}),
    ),
    _changes(23997288, 742, ("update", 1, {"id": "1", "state": "paid"}), ("delete", 2, {"id": "2"})),
    _changes(23998112, 743, ("insert", 3, {"id": "3", "state": "open"})),
)


def _register(log: str) -> None:
    columns = (ColumnBinding(1, "id", 23, -1, 0), ColumnBinding(2, "state", 25, -1, 0))
    definition = ShapeDefinition("orders", _ORDERS)
    entry = ShapeEntry(source=SOURCE, definition=definition, table_oid=7, starts_after=LogOffset(9, 0))
    register(log, entry, TableEntry(SOURCE, TableBinding(7, _ORDERS, ID_KEY, columns)))


async def _answered(server: Server, log: str, number: int, query: dict[str, Any]) -> Response:
    """The answer to a request, before which its transaction is committed, or while it waits if it is a live one."""
    asked = asyncio.create_task(server.get(query)) if query.get("live") else None
    while asked and not server.served.parts.poller.waiting:
        await asyncio.sleep(0.01)
    if 0 < number < len(_TRANSACTIONS):
        append(log, _TRANSACTIONS[number])
        await server.served.parts.poller.current(fresh=True)
    return await (asked or server.get(query))


async def test_the_exchange_is_as_the_page_shows(log: str) -> None:
    """Handles and cursors are those that this server has sent where the page shows its own."""
    _register(log)
    append(log, _TRANSACTIONS[0])
    sent: dict[str, str] = {}
    async with serving(log, live_s=2) as server:
        for number, (address, headers, body) in enumerate(_EXCHANGES):
            query = {name: sent.get(value, value) for name, value in parse_qsl(urlsplit(address).query)}
            answer = await _answered(server, log, number, query)
            shown = dict(line.split(": ", 1) for line in headers.splitlines())
            sent |= {shown[name]: answer.headers[name] for name in _OWN if name in shown}
            for value in sent:
                shown = {name: text.replace(value, sent[value]) for name, text in shown.items()}
            assert answer.body.decode() == body
            assert {name: answer.headers[name] for name in (shown if number else answer.headers)} == shown
    assert len(_EXCHANGES) == 4
