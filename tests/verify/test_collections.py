"""TanStack DB's collections, in Node and in a browser, against the whole pipeline: eager, on demand and progressive.

The packages come from the lock file of ``examples/orders_page``.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

from flushtracker.postgres.connection import Connection, connect, rows
from flushtracker.trials.demo.demo import Demo, running_demo
from tests.support.browser import browser
from tests.support.killed_server import KilledServer, is_served
from tests.support.new_server import server_folder
from tests.support.node_folder import node_folder, npm, page_server
from tests.support.seeds import every
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_PAGE: Final = _ROOT / "examples" / "orders_page"
_DEADLINE_S: Final = 300.0
_SHAPE: Final = '{id: places, table: public.places, flush: {interval: "300 ms"}}'
_ORDERS: Final = 20_000
"""How many orders the demo begins with."""
_STEPS: Final = 60
_KILL_EVERY: Final = 15
_AWAITED: Final = (5, 20)
_TRUNCATE_AT: Final = 25
_RESYNC_AT: Final = 40
_QUERIES: Final = {
    "newest": "SELECT id, region, n FROM public.places WHERE region = 'eu' ORDER BY id DESC LIMIT 5",
    "byRegion": "SELECT id, region, n FROM public.places ORDER BY region, id LIMIT 12",
    "later": "SELECT id, region, n FROM public.places WHERE id > 20 ORDER BY id",
    "early": "SELECT id, region, n FROM public.places WHERE region = 'us' ORDER BY id",
    "all": "SELECT id, region, n FROM public.places ORDER BY id",
}
"""What the live queries of ``collections.mjs`` are in SQL."""
_SUBSETS: Final[tuple[tuple[dict[str, object], str], ...]] = (
    (
        {"where": "region = $1", "params": {"1": "eu"}, "orderBy": "id DESC", "limit": 4},
        "SELECT id FROM public.places WHERE region = 'eu' ORDER BY id DESC LIMIT 4",
    ),
    (
        {"orderBy": "n DESC, id", "limit": 7, "offset": 3},
        "SELECT id FROM public.places ORDER BY n DESC, id LIMIT 7 OFFSET 3",
    ),
    (
        {"where": "region > $1", "params": {"1": "asia"}, "orderBy": "region, id", "limit": 9},
        "SELECT id FROM public.places WHERE region > 'asia' ORDER BY region, id LIMIT 9",
    ),
    (
        {"where": "id > $1 AND region IN ('us', 'asia')", "params": {"1": "10"}, "orderBy": "id", "limit": 50},
        "SELECT id FROM public.places WHERE id > 10 AND region IN ('us', 'asia') ORDER BY id LIMIT 50",
    ),
)
_TABLE: Final = """
CREATE TABLE public.places (id int PRIMARY KEY, region text COLLATE "C" NOT NULL, n bigint NOT NULL)
"""
_FIRST: Final = """
INSERT INTO public.places SELECT i, (ARRAY['eu', 'us', 'asia'])[i % 3 + 1], {n} FROM generate_series(1, 30) i
"""
_CHANGED: Final = "UPDATE public.places SET n = {n} WHERE id BETWEEN {n} % 30 AND {n} % 30 + 10"
_ADDED: Final = "INSERT INTO public.places SELECT max(id) + 1, 'eu', {n} FROM public.places"
_REMOVED: Final = "DELETE FROM public.places WHERE id % 9 = {n} % 9"
_MOVED: Final = """
UPDATE public.places SET n = {n}, region = CASE region WHEN 'eu' THEN 'us' WHEN 'us' THEN 'asia' ELSE 'eu' END
WHERE id % 5 = {n} % 5
"""


class _Collections:
    """``collections.mjs``, over some servers."""

    def __init__(self, node: Path, servers: list[str]) -> None:
        command = ["node", "collections.mjs", "public.places", *servers]
        self._process = subprocess.Popen(
            command, cwd=node, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.last: dict[str, Any] = {"shown": {}, "problems": []}
        self._asked = 0
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.last = json.loads(line)

    def ask(self, **command: Any) -> int:
        """Send a command; its result will be in ``last["done"]`` by the number that is returned."""
        self._asked += 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**command, "number": self._asked}) + "\n")
        return self._asked

    def result(self, number: int) -> Any:
        """The result of a command, once there is one."""

        def done() -> dict[str, Any] | None:
            assert not self.last["problems"], self.last["problems"]
            found: dict[str, Any] = self.last.get("done", {})
            return found if str(number) in found else None

        return wait_until(done, f"answer {number}", _DEADLINE_S)[str(number)]

    def await_txid(self, txid: int) -> None:
        """Wait until the collections of each mode have the transaction, by ``awaitTxId``."""
        assert self.result(self.ask(txid=txid)) == txid

    def has(self, expected: dict[str, Any]) -> bool:
        assert not self.last["problems"], self.last["problems"]
        return bool(self.last["shown"] == expected)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def node() -> Path:
    return node_folder(_PAGE, Path(__file__).with_name("collections.mjs"))


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """The demo, once all of it runs, with a table of our own, of which there is a shape."""
    with server_folder() as folder, running_demo(folder / "demo", lambda _: None) as demo:
        with closing(connect(demo.config.postgres.connection)) as database, database.cursor() as cursor:
            cursor.execute(_TABLE)
            cursor.execute("ALTER TABLE public.places REPLICA IDENTITY FULL")
            cursor.execute(_FIRST.format(n=0))

        def runs() -> bool:
            demo.step()
            return demo.pipeline.has_rows

        wait_until(runs, "the demo runs", _DEADLINE_S, pause_s=1)
        yield demo


@every(6, 0)
def test_collections_show_what_the_table_has_while_servers_are_killed(demo: Demo, node: Path, tmp_path: Path) -> None:
    """Collections of each mode show PostgreSQL's own answers in the end, and no row ever goes back.

    Their two servers are killed in turn, the table is truncated, and its shape is begun again. Meanwhile awaitTxId
    waits for transactions. Then subsets have the rows that PostgreSQL has, in its order.
    """
    _run("add-shape", "-", demo, input=_SHAPE.encode())
    servers = [KilledServer(tmp_path, demo.log, on_demand=["public.places"]) for _ in range(2)]
    collections = None
    try:
        for server in servers:
            server.start()
        wait_until(lambda: all(each.has("places") for each in servers), "both serve it", _DEADLINE_S, pause_s=0.5)
        collections = _Collections(node, [server.url for server in servers])
        with closing(connect(demo.config.postgres.connection)) as database:
            wait_until(lambda: collections.has(_answers(database)), "all show the first rows", _DEADLINE_S, pause_s=0.5)
            _write(demo, database, servers, collections)
            wait_until(lambda: collections.has(_answers(database)), "all show the last rows", _DEADLINE_S, pause_s=0.5)
            assert collections.last["refetches"] >= 1
            collections.await_txid(_transaction(database, [_CHANGED.format(n=_STEPS + 1)]))
            for subset, query in _SUBSETS:
                assert collections.result(collections.ask(subset=subset)) == [
                    int(id_) for (id_,) in rows(database, query)
                ]
            assert collections.has(_answers(database))
    finally:
        if collections is not None:
            collections.stop()
        for server in servers:
            server.kill()


@every(6, 0)
def test_page_shows_orders_on_demand(demo: Demo, node: Path) -> None:
    """The example works on the demo as it is: it loads a region's newest orders, more of them, and a customer's."""
    npm(node, "run", "build")
    for shape in ("orders", "customers"):
        wait_until(partial(is_served, demo.shapes_url, shape), f"{shape} is served", _DEADLINE_S, pause_s=0.5)
    with page_server(node) as address, browser() as page:
        page.open(f"{address}/?url={demo.shapes_url}")
        _wait_for_rows(page, "newest", 15)
        loaded = int(page.text("newest-state").split(";")[1].split()[0])
        assert loaded < _ORDERS, "the page has loaded what it does not show"
        page.script("document.getElementById('more').click()")
        _wait_for_rows(page, "newest", 30)
        newest = "return document.querySelector('#newest td').textContent"
        first = int(page.script(newest))
        wait_until(lambda: int(page.script(newest)) > first, "a new order", _DEADLINE_S)
        page.script("document.querySelector('#newest tr').click()")
        _wait_for_rows(page, "who", 1)
        wait_until(lambda: page.script("return document.body.dataset.open") == "live", "open orders", _DEADLINE_S)
        page.save("orders_page")
        assert not [each for each in page.errors() if "favicon" not in each]


def _wait_for_rows(page: Any, place: str, count: int) -> None:
    rows = f"return document.querySelectorAll('#{place} tr').length"
    wait_until(lambda: page.script(rows) == count, f"{count} rows in {place}: {page.text(f'{place}-state')}", 60)


def _write(demo: Demo, database: Connection, servers: list[KilledServer], collections: _Collections) -> None:
    """Write, and kill servers, and begin the shape again.

    A client that begins again gets rows, which have no transactions, so none is waited for from the TRUNCATE on.
    """
    rng = random.Random(1)  # noqa: S311  reproducible
    for n in range(1, _STEPS + 1):
        demo.step()
        txid = _transaction(database, _statements(rng, n))
        if n in _AWAITED:
            collections.await_txid(txid)
        if n == _RESYNC_AT:
            _run("resync", "--yes", "places", demo)
        if n % _KILL_EVERY == 0:
            server = servers[n // _KILL_EVERY % 2]
            server.kill()
            server.start()
        time.sleep(rng.choice([0, 0.05, 0.3]))


def _transaction(database: Connection, statements: list[str]) -> int:
    """Run it, and return its id, as messages have it."""
    rows(database, "; ".join(["BEGIN", *statements]))
    ((txid,),) = rows(database, "SELECT pg_current_xact_id()::xid::text")
    rows(database, "COMMIT")
    return int(txid)


def _statements(rng: random.Random, n: int) -> list[str]:
    """A transaction: rows change, come, go, and get another region."""
    if n == _TRUNCATE_AT:
        return ["TRUNCATE public.places", _FIRST.format(n=n)]
    return [each.format(n=n) for each in (_CHANGED, rng.choice([_ADDED, _REMOVED, _MOVED]))]


def _answers(database: Connection) -> dict[str, Any]:
    """What PostgreSQL answers to each query."""
    found = dict[str, Any]()
    for name, query in _QUERIES.items():
        answer = rows(database, query)
        found[name] = [{"id": int(id_), "region": region, "n": int(n)} for id_, region, n in answer]
    return found


def _run(command: str, *arguments: Any, input: bytes | None = None) -> None:  # noqa: A002  as subprocess has it
    """A command on the demo, which is the last argument."""
    *words, demo = arguments
    whole = [sys.executable, "-m", "flushtracker", command, *words, "--config", str(demo.config_file)]
    subprocess.run([*whole, "--timeout", "120"], input=input, cwd=_ROOT, check=True, timeout=_DEADLINE_S)
