"""Subsets over HTTP: which rows, in which order, at which offset, and who is refused."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest

from flushtracker.config.serve_config import SubsetRules
from flushtracker.events.registry_events import TableEntry
from flushtracker.serve import precedence
from flushtracker.serve.live_serve_status import LiveServeStatus
from flushtracker.serve.refusals import BadRequestError
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.serve.subset import subset_rows
from flushtracker.serve.subset.row_order import OrderedRow, RowOrder
from flushtracker.serve.subset.subset_request import Subset
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shapes.bound_relation import relation_of
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.on_demand_log import BINDING, NAMES, ORDERS, WHOLE, order_entries
from tests.support.sample_registry import again, register
from tests.support.serve_client import Client, Response, Server, serving
from tests.support.shape_log_rows import SOURCE, append, snapshot_rows
from tests.unit.serve.test_on_demand import begin, change, key, order

_SHAPE: Final = {"shape": "orders"}
_SOME: Final = replace(WHOLE, id="some", columns=("id", "t"))


async def at(server: Server, client: Client, **subset: Any) -> Response:
    """A subset for a client, as Electric's client asks for it: with its handle and offset."""
    asked = {f"subset__{name}": value for name, value in subset.items()}
    return await server.get({**client.query(live=False), "log": "changes_only", **asked})


def ids(response: Response) -> list[str]:
    assert response.status == 200, response.body
    return [each["value"]["id"] for each in response.json["data"]]


async def test_a_subset_has_the_rows_that_match_as_of_the_clients_offset(log: str) -> None:
    """It is at the client's offset, however far the log is, and moves the client nowhere."""
    begin(log, WHOLE)
    async with serving(log) as server:
        client = Client(_SHAPE)
        await client.sync(server)
        change(log, 24, "insert", 3, b="t", t="three")
        await server.served.parts.poller.current(fresh=True)
        found = await at(server, client, where="b")
        assert found.json["data"] == [
            {
                "key": key(1),
                "value": order(1, b="t", t="one"),
                "headers": {
                    "operation": "insert",
                    "relation": ["public", "orders"],
                    "snapshot_mark": found.json["metadata"]["snapshot_mark"],
                },
            }
        ]
        assert (found.headers["electric-handle"], found.headers["electric-offset"]) == (client.handle, client.offset)
        assert found.headers["electric-snapshot"] == "true"
        assert json.loads(found.headers["electric-schema"])["id"]["type"] == "int4"
        await client.sync(server)
        assert ids(await at(server, client, where="b", order_by="id DESC")) == ["3", "1"]


async def test_a_subset_contains_no_transaction_of_the_clients_stream(log: str) -> None:
    """By the client's rule no later change is skipped, whatever its xid: xids do not follow commits."""
    begin(log, WHOLE)
    async with serving(log) as server:
        client = Client(_SHAPE)
        await client.sync(server)
        found = (await at(server, client, where="true")).json["metadata"]
        assert (found["xmin"], found["xmax"], found["xip_list"]) == ("3", "3", [])
        assert found["database_lsn"] == client.offset.partition("_")[0]
        assert 0 <= found["snapshot_mark"] < 2**31


async def test_a_client_that_is_ahead_gets_no_older_rows(log: str) -> None:
    """It was shown more by another server: the log must have that, or there is a 503, and it retries."""
    begin(log, WHOLE)
    async with serving(log, live_s=0.2) as server:
        client = Client(_SHAPE)
        await client.sync(server)
        client.offset = "24_0"
        assert (await at(server, client, where="true")).status == 503
        change(log, 24, "delete", 1)
        found = await at(server, client, where="true")
        assert (ids(found), found.headers["electric-offset"]) == (["2"], "24_0")


async def test_a_client_whose_offset_is_gone_keeps_it_and_begins_again_by_its_stream(log: str) -> None:
    """A 409 would only give it a handle: it would continue with the rows that it has. So its stream gets the 409."""
    begin(log, WHOLE)
    async with serving(log) as server:
        client = Client(_SHAPE)
        await client.sync(server)
        other = client.handle or ""
        client.handle = ("0" if other[8] != "0" else "1").join([other[:8], other[9:]])
        found = await at(server, client, where="b")
        assert ids(found) == ["1"]
        assert (found.headers["electric-handle"], found.headers["electric-offset"]) == (client.handle, client.offset)
        assert found.headers["cache-control"] == "no-store"
        assert (await client.step(server)).status == 409
        client.handle, client.offset = "nobody's", "8_0"
        assert (await at(server, client, where="b")).status == 409


async def test_a_new_client_continues_before_what_another_answer_may_have_given_it(log: str) -> None:
    """It may have asked for two subsets at once, and takes the offset of the last answer: not above the other's rows.

    What is not so old in the log comes again, and leads to the same rows.
    """
    begin(log, WHOLE)
    change(log, 16, "update", 1, t="old")
    async with serving(log) as server:
        subsets = server.served.answers.subsets
        subsets.now = lambda: datetime.now(timezone.utc) + timedelta(seconds=30)
        client = Client({**_SHAPE, "log": "changes_only"}, offset="now")
        first = await at(server, client, where="id = 1")
        then = datetime.now(timezone.utc)
        change(log, 24, "update", 1, t="new")
        await server.served.parts.poller.current(fresh=True)
        subsets.now = lambda: then + timedelta(seconds=30)
        second = await at(server, client, where="id = 2")
        assert [int(each.headers["electric-offset"][:-2]) for each in (first, second)] == [16, 16]
        assert first.json["data"][0]["value"]["t"] == "old"
        client.handle, client.offset = second.headers["electric-handle"], second.headers["electric-offset"]
        client.rows = {each["key"]: each["value"] for each in first.json["data"] + second.json["data"]}
        await client.sync(server)
        assert client.rows[key(1)]["t"] == "new"


async def test_a_subset_reads_only_what_the_shape_shows(log: str) -> None:
    """Whether a row is there tells nothing of a hidden column, by a shape of the file and by one on demand."""
    begin(log, WHOLE, _SOME)
    async with serving(log, on_demand=frozenset([ORDERS])) as server:
        asked = {"table": "orders", "where": "b", "columns": "t", "offset": "-1"}
        for shape in ({"shape": "some", "offset": "-1"}, asked):
            found = await server.get({**shape, "subset__where": "n IS NULL"})
            assert found.status == 400
            assert 'reads column "n", which the shape does not show' in found.json["message"]
            found = await server.get({**shape, "subset__where": "true", "subset__order_by": "n"})
            assert (found.status, "does not show" in found.json["message"]) == (400, True)
        assert ids(await server.get({**asked, "subset__where": "true"})) == ["1"]
        assert ids(await server.get({**asked, "subset__where": "t = 'two'"})) == []


async def test_a_subset_comes_by_post_as_by_get(log: str) -> None:
    """Clients send long conditions so. No cache may keep it, and a body asks for nothing else."""
    begin(log, WHOLE)
    async with serving(log) as server:
        client = Client(_SHAPE)
        await client.sync(server)
        query = client.query(live=False)
        document = {
            "where": "t = ANY($1) AND id > $2",
            "params": {"1": "{one,two}", "2": 1},
            "order_by": "id",
            "limit": 5,
        }
        found = await server.post(query, document)
        assert (ids(found), found.headers["cache-control"]) == (["2"], "no-store")
        assert ids(await server.post(query, {"subset": {"where": "id = 1"}})) == ["1"]
        assert ids(await server.post(query, {})) == ["1", "2"]
        text = json.dumps({"1": "{one,two}"})
        found = await at(server, client, where="t = ANY($1)", params=text, order_by="id DESC", limit=1)
        assert (ids(found), found.headers["cache-control"]) == (["2"], "public, max-age=5")
        for body, problem in (
            (b"[]", "not one JSON object"),
            (b'{"where":', "not JSON"),
            (b'{"where":"a","where":"b"}', "a key twice"),
            (b'{"table":"x"}', "subset__table"),
            (b'{"limit":-1}', "subset__limit is not a number"),
            (b'{"limit":1.5}', "subset__limit is not a number"),
            (b'{"limit":true}', "subset__limit is not a number"),
            (b'{"where":1}', "where"),
            (b'{"where":["id"]}', "subset__where is not a text"),
            (b'{"params":{"1":null}}', "object of texts"),
            (b'{"where_expr":{}}', "not read"),
            (b"\xff", "not JSON"),
        ):
            refused = await server.request(b"shape=orders&offset=-1", method="POST", body=body)
            assert refused.status == 400, body
            assert problem in refused.json["message"]
        twice = await server.post({**query, "subset__where": "true"}, {"where": "false"})
        assert "in the address and in the body" in twice.json["message"]
        large = await server.request(b"shape=orders&offset=-1", method="POST", body=b" " * 70_000)
        assert (large.status, large.headers["connection"]) == (413, "close")


@pytest.mark.parametrize(
    ("subset", "problem"),
    [
        ({"where": "nope = 1"}, 'reads column "nope"'),
        ({"where": "id = "}, "subset: where"),
        ({"where": "id = $1"}, "params lacks the value of $1"),
        ({"where": "id = 1", "params": '{"1":"2"}'}, "a value that where does not name"),
        ({"params": '{"1":"2"}'}, "there is no where"),
        ({"where": "id IN (SELECT a FROM b)"}, "subset"),
        ({"where": "t > 'a'"}, "order of text depends on the collation"),
        ({"order_by": "t", "limit": "1"}, 'names column "t" (text), whose collation may have another order'),
        ({"order_by": "lower(t)"}, "expressions are not supported"),
        ({"order_by": "id,"}, "is not a list"),
        ({"order_by": 'id COLLATE "C"'}, "which has none"),
        ({"order_by": "nope"}, "does not show"),
        ({"limit": "100001"}, "subsets.rows"),
        ({"limit": "1", "offset": "100000"}, "subsets.rows"),
        ({"nope": "1"}, "subset__nope"),
    ],
)
async def test_a_subset_that_cannot_be_told_is_refused_by_name(log: str, subset: dict[str, str], problem: str) -> None:
    begin(log, WHOLE)
    async with serving(log) as server:
        found = await server.get({"shape": "orders", "offset": "-1", **{f"subset__{n}": v for n, v in subset.items()}})
        assert found.status == 400
        assert problem in found.json["message"]


async def test_a_subset_that_is_too_large_is_refused(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In rows, in bytes, and in what must be held to sort it; less of the same shape is served."""
    begin(log, WHOLE)
    async with serving(log) as server:
        server.replace(replace(server.served.parts, subset_rules=SubsetRules(1)), 1.0)
        asked = {"shape": "orders", "offset": "-1"}
        assert "more than 1 rows" in (await server.get({**asked, "subset__where": "true"})).json["message"]
        assert ids(await server.get({**asked, "subset__limit": "1"})) == ["1"]
        monkeypatch.setattr(subset_rows, "PAGE_BYTES", 20)
        assert "MiB" in (await server.get({**asked, "subset__limit": "1"})).json["message"]
        monkeypatch.setattr(subset_rows, "_MOST_HELD", 20)
        assert "MiB" in (await server.get({**asked, "subset__where": "id = 1"})).json["message"]


async def test_the_status_has_what_reads_of_subsets_cost(log: str) -> None:
    """Also of those that failed, which have read as much; those of other requests are not among them."""
    begin(log, WHOLE)
    async with serving(log) as server:
        await Client(_SHAPE).sync(server)
        asked = {"shape": "orders", "offset": "-1"}
        assert len(ids(await server.get({**asked, "subset__where": "true"}))) == 2
        assert (await server.get({**asked, "subset__where": "no_column = 1"})).status == 400
        status = LiveServeStatus(server.served, 0).read()
        assert (status.subset_reads, status.subset_rows, status.running_subset_reads) == (2, 2, 0)
        assert server.served.parts.subset_counts.read_s > 0
        assert 0 <= status.subset_read_ms < 60_000


async def test_text_is_ordered_by_bytes_where_the_operator_says_so(log: str) -> None:
    begin(log, WHOLE)
    async with serving(log) as server:
        asked = {"shape": "orders", "offset": "-1", "subset__order_by": '"t" DESC NULLS LAST', "subset__limit": "1"}
        assert (await server.get(asked)).status == 400
        server.replace(replace(server.served.parts, subset_rules=SubsetRules(has_text_in_bytes=True)), 1.0)
        assert ids(await server.get(asked)) == ["2"]


_AFTER: Final = {"shape": "orders", "offset": "-1", "subset__params": '{"1": "0"}'}


@pytest.mark.parametrize(
    ("where", "ids_after"), [("t > $1", ["1", "2"]), ("$1 >= t", []), ("NOT t <= $1", ["1", "2"]), ("t < $1", [])]
)
async def test_the_next_page_by_a_text_is_told_where_its_order_is_known(
    log: str, where: str, ids_after: list[str]
) -> None:
    """As TanStack DB asks for it: by the last value of the page before. Its collation orders by bytes, or the operator
    says so.
    """
    begin(log, WHOLE)
    async with serving(log) as server:
        asked = {**_AFTER, "subset__where": where}
        assert (await server.get(asked)).status == 400
        server.replace(replace(server.served.parts, subset_rules=SubsetRules(has_text_in_bytes=True)), 1.0)
        assert ids(await server.get(asked)) == ids_after
    columns = tuple(replace(each, is_bytewise=each.name == "t") for each in BINDING.columns)
    again(log, TableEntry(SOURCE, replace(BINDING, columns=columns)), 10)
    async with serving(log) as server:
        assert ids(await server.get(asked)) == ids_after
        unknown = ("t > v AND t = $1", "lower(t) > $1", "t || 'a' > $1", "'a' < 'b' OR t = $1")
        for other in (where.replace("t", "v"), *unknown):
            refused = await server.get({**_AFTER, "subset__where": other})
            assert refused.status == 400, other
            assert "order of text depends on the collation" in refused.json["message"]


async def test_text_is_ordered_by_bytes_where_its_collation_does(log: str) -> None:
    """Capture has found so for one column, as of collation C; another one is refused, with what can be done."""
    begin(log, WHOLE)
    columns = tuple(replace(each, is_bytewise=each.name == "t") for each in BINDING.columns)
    again(log, TableEntry(SOURCE, replace(BINDING, columns=columns)), 10)
    async with serving(log) as server:
        asked = {"shape": "orders", "offset": "-1", "subset__order_by": '"t" DESC NULLS LAST', "subset__limit": "1"}
        assert ids(await server.get(asked)) == ["2"]
        refused = await server.get({**asked, "subset__order_by": "t, v"})
        assert (refused.status, 'names column "v"' in refused.json["message"]) == (400, True)
        assert "ALTER TABLE" in refused.json["message"]


def test_a_subset_does_not_wait() -> None:
    with pytest.raises(BadRequestError, match="does not go with a subset"):
        ShapeRequest.of(
            {"shape": "a", "offset": "8_0", "handle": f"{'0' * 24}-1-0", "live": "true", "subset__limit": "1"}
        )


_VALUES: Final = {
    "i4": [None, "-3", "0", "7", "10"],
    "n": [None, "NaN", "-Infinity", "1.50", "1.5", "10", "Infinity"],
    "b": [None, "t", "f"],
    "d": [None, "infinity", "0044-03-15 BC", "2024-01-31", "10000-01-01"],
}
"""In PostgreSQL's order, NULL last."""


def _rank(name: str, value: str | None) -> float:
    """The place of a value among all; a naive definition of the order."""
    if value is None:
        return 1e9
    order = {
        "i4": ["-3", "0", "7", "10"],
        "n": ["-Infinity", "1.5", "10", "Infinity", "NaN"],
        "b": ["f", "t"],
        "d": ["0044-03-15 BC", "2024-01-31", "10000-01-01", "infinity"],
    }[name]
    return order.index("1.5" if value == "1.50" else value)


def test_rows_are_in_postgresqls_order_and_pages_of_them_do_not_overlap() -> None:
    """Numbers, dates and booleans, NULLs first and last, up and down; ties by key, whatever order they came in."""
    rng = Random(1)  # noqa: S311  reproducible
    names = list(_VALUES)
    for _ in range(300):
        rows = [
            {**order(number), **{name: rng.choice(_VALUES[name]) for name in names}}
            for number in range(rng.randint(0, 9))
        ]
        terms = [
            (name, rng.random() < 0.5, rng.choice(["", "FIRST", "LAST"]))
            for name in rng.sample(names, rng.randint(1, 3))
        ]
        text = ",".join(f'"{n}"{" DESC" if d else ""}{f" nulls {f}" if f else ""}' for n, d, f in terms)
        found = RowOrder.of(text, relation_of(BINDING), by_bytes=())
        given = [found.row(f"k{row['id']}", "", row) for row in rng.sample(rows, len(rows))]

        def place(row: dict[str, str | None], terms: list[tuple[str, bool, str]] = terms) -> tuple[object, ...]:
            parts = list[float]()
            for name, is_descending, nulls in terms:
                rank = _rank(name, row[name])
                first = nulls == "FIRST" or (not nulls and is_descending)
                parts.append((-1e9 if first else 1e9) if row[name] is None else -rank if is_descending else rank)
            return (*parts, f"k{row['id']}")

        assert [each.key for each in found.sort(given)] == [f"k{row['id']}" for row in sorted(rows, key=place)]
        whole = subset_rows.SubsetRows(None, found, None, 0, 100)
        assert whole.order.sort(given) == found.sort(given)


def test_text_is_in_the_order_of_bytes_where_that_is_asked_for() -> None:
    found = RowOrder.of('t COLLATE "C" DESC', relation_of(BINDING), by_bytes=())
    rows = [found.row(text, "", {"t": text}) for text in ("a", "B", "é", "z")]
    assert [each.key for each in found.sort(rows)] == ["é", "z", "a", "B"]
    with pytest.raises(BadRequestError, match="expressions are not supported"):
        RowOrder.of('t COLLATE "c"', relation_of(BINDING), by_bytes=())


def test_a_cut_subset_is_the_same_however_much_is_held() -> None:
    """While rows are sorted, only those are held that may be shown."""
    rng = Random(2)  # noqa: S311  reproducible
    numbers = rng.sample(range(5_000), 5_000)
    table = pa.table({"key": [f"{n:05}" for n in numbers], "value": [json.dumps({"id": str(n)}) for n in numbers]})
    order_by = RowOrder.of("id DESC", relation_of(BINDING), by_bytes=())
    for limit, offset in ((1, 0), (10, 25), (0, 3), (5, 4_998)):
        chosen = subset_rows.SubsetRows(None, order_by, limit, offset, 10_000)
        found = chosen.chosen([table.slice(start, 100) for start in range(0, 5_000, 100)], lambda: None)
        assert found["key"].to_pylist() == [f"{n:05}" for n in range(4_999, -1, -1)][offset : offset + limit]


def test_a_subset_is_read_from_both_forms_of_its_parameters() -> None:
    given = {"shape": "a", "offset": "now", "subset__where": "$1", "subset__params[1]": "x", "subset__offset": "3"}
    assert ShapeRequest.of(given).subset == Subset("$1", ((1, "x"),), None, None, 3)
    assert ShapeRequest.of({"shape": "a", "offset": "now"}).subset is None
    assert set(NAMES) >= {"id", "t"}


async def test_many_subsets_are_in_nobodys_way(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many that differ get a 503 with a time to retry; equal ones share a read; others are answered meanwhile."""
    begin(log, WHOLE)
    let = threading.Event()
    chosen = subset_rows.SubsetRows.chosen

    def slow(self: subset_rows.SubsetRows, *arguments: Any) -> Any:
        let.wait(30)
        return chosen(self, *arguments)

    monkeypatch.setattr(subset_rows.SubsetRows, "chosen", slow)
    async with serving(log) as server:
        client = Client(_SHAPE)
        await client.sync(server)
        flights = server.served.parts.subset_flights
        asked = [asyncio.create_task(at(server, client, where=f"id = {n % 70}")) for n in range(140)]
        done, _ = await asyncio.wait(asked, return_when="FIRST_COMPLETED")
        assert {(await each).status for each in done} == {503}
        while flights.running < 66 or len([each for each in asked if each.done()]) < 8:
            await asyncio.sleep(0.01)
        change(log, 24, "insert", 3)
        await client.step(server, live=True)
        assert len(client.rows) == 3
        let.set()
        statuses = [(await each).status for each in asked]
        assert (statuses.count(200), statuses.count(503), flights.started) == (132, 8, 66)


async def test_reads_of_subsets_stand_back_for_the_shapes_clients(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a client of the shape is about to be answered, a subset's read takes no step, but for half of the time."""
    monkeypatch.setattr(precedence, "STEP_S", 60.0)
    begin(log, WHOLE)
    async with serving(log) as server:
        client, parts = Client(_SHAPE), server.served.parts
        await client.sync(server)
        with parts.precedence.answering():
            subset = asyncio.create_task(at(server, client, where="id = 1"))
            while not parts.subset_flights.running:
                await asyncio.sleep(0.01)
            done, _ = await asyncio.wait({subset}, timeout=0.3)
            assert not done, "the subset was read first"
        assert ids(await subset) == ["1"]


async def test_a_subset_that_takes_too_long_ends_when_nobody_waits_for_it(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client got a 503 and may ask again; if it does not, the thread is free for others."""
    begin(log, WHOLE)
    ended = threading.Event()

    def slow(_rows: subset_rows.SubsetRows, _tables: Any, check: Callable[[], None]) -> Any:
        try:
            while True:
                check()
                time.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(subset_rows.SubsetRows, "chosen", slow)
    async with serving(log) as server:
        client, flights = Client(_SHAPE), server.served.parts.subset_flights
        await client.sync(server)
        flights.wait_s, flights.keep_s = 0.2, 5.0
        assert (await at(server, client, where="id = 1")).status == 503
        assert (flights.running, ended.is_set()) == (1, False)
        assert (await at(server, client, where="id = 1")).status == 503
        assert flights.started == 1, "its client does not share the read when it asks again"
        assert await asyncio.to_thread(ended.wait, 30)


async def test_rows_of_a_snapshot_that_is_ahead_of_the_log_are_not_taken_for_older_ones(log: str) -> None:
    """It lacks two transactions below its end. Of the state between these, only the newest rows are known: they come
    again, and no cache may keep that answer.
    """
    register(log, *order_entries(WHOLE))
    snapshot = ShapeSnapshot(1, MvccSnapshot.parse("10:10:"), lsn=100, next_xid=30)
    append(log, snapshot_rows(snapshot, {key(1): order(1, b="t", t="one")}, shape_id="orders"))
    change(log, 16, "update", 1, t="two")
    async with serving(log) as server:
        client = Client(_SHAPE)
        await client.sync(server)
        assert client.offset == "16_0"
        change(log, 24, "update", 1, t="three")
        await server.served.parts.poller.current(fresh=True)
        found = await at(server, client, where="true")
        assert found.json["data"][0]["value"]["t"] == "three"
        assert (found.headers["electric-offset"], found.headers["cache-control"]) == ("16_0", "no-store")
        change(log, 104, "update", 1, t="four")
        await client.sync(server)
        found = await at(server, client, where="true")
        assert (found.json["data"][0]["value"]["t"], found.headers["cache-control"]) == ("four", "public, max-age=5")


def test_a_cut_subset_is_refused_before_each_row_is_sorted_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the rows are that are held: a limit that leaves room for one more would cost a sort for each."""
    monkeypatch.setattr(subset_rows, "_MOST_HELD", 1 << 18)
    sorts, sort = list[int](), RowOrder.sort

    def counting(self: RowOrder, rows: list[OrderedRow], *arguments: Any) -> list[OrderedRow]:
        sorts.append(len(rows))
        return sort(self, rows, *arguments)

    monkeypatch.setattr(RowOrder, "sort", counting)
    rows, text = 3_000, "x" * 1_000
    table = pa.table({"key": [f"{n:05}" for n in range(rows)], "value": [text] * rows})
    answered = list[int]()
    for limit in range(1, 260, 4):
        chosen = subset_rows.SubsetRows(None, RowOrder(), limit, 0, rows)
        sorts.clear()
        with suppress(BadRequestError):
            assert len(chosen.chosen([table], lambda: None)) == limit
            answered.append(limit)
        assert sum(sorts) < 4 * rows
    assert answered == [*range(1, 110, 4)]
