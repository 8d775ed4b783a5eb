"""Electric's own client, in Node and in a browser, against the whole pipeline, whose HTTP servers are killed.

The client comes from the lock file of ``examples/shape_page``.
"""

import json
import random
import re
import subprocess
import sys
import time
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pytest

from flushtracker.events.registry_events import TableEntry
from flushtracker.postgres.connection import connect
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.trials.demo.demo import Demo, running_demo
from tests.support.browser import browser
from tests.support.folded_log import EPOCH, dated
from tests.support.key_bindings import ID_KEY
from tests.support.killed_server import KilledServer
from tests.support.node_folder import node_folder, page_server
from tests.support.sample_registry import register, shape_entry
from tests.support.seeds import every
from tests.support.shape_log_rows import SOURCE, Row, append, commit, item
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_PAGE: Final = _ROOT / "examples" / "shape_page"
_DEADLINE_S: Final = 300.0
_KILLS: Final = 4
_BETWEEN_KILLS_S: Final = 2.0
_JOINED: Final = "(id % 3) IN (SELECT id FROM public.groups WHERE is_on)"
_SHAPES: Final = (
    '{id: steps, table: public.steps, flush: {interval: "300 ms"}}',
    f'{{id: steps-joined, table: public.steps, where: "{_JOINED}", flush: {{interval: "300 ms"}}}}',
)
_ROWS: Final = 30

State = tuple[int, int]
"""Rows, and the sum of their ids."""


@pytest.fixture(scope="session")
def node() -> Path:
    """A folder with the client, as the lock file has it."""
    return node_folder(_PAGE, Path(__file__).with_name("follow_shape.mjs"))


class _Follower:
    """Electric's client in Node."""

    def __init__(self, node: Path, shape: str, mode: str, servers: list[str]) -> None:
        command = ["node", "follow_shape.mjs", shape, mode, *servers]
        self._process = subprocess.Popen(command, cwd=node, stdout=subprocess.PIPE, text=True)
        self.last: dict[str, Any] = {"shown": 0, "n": -1}
        self.states: dict[int, State] = {}
        """What it has shown, by ``n``, if it had rows."""
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            found = json.loads(line)
            if found["rows"]:
                self.states[found["n"]] = (found["rows"], found["ids"])
            self.last = found

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def _steps(connection: Any, stop: Event) -> dict[int, State]:
    """Transactions that leave all rows with one ``n``: updates, new keys, other keys, deletes, TOAST, TRUNCATE.

    Some also turn a group on or off. Returns what each leaves of the shape with a subquery, by ``n``.
    """
    rng, n, left = random.Random(1), 0, {}  # noqa: S311  reproducible
    with connection.cursor() as cursor:
        left[n] = _joined(cursor)
        while not stop.is_set():
            n += 1
            kind = rng.random()
            statements = ["UPDATE public.steps SET n = %(n)s"]
            if kind < 0.05:
                statements = [
                    "TRUNCATE public.steps",
                    "INSERT INTO public.steps SELECT i, %(n)s, 'again' FROM generate_series(1, 30) i",
                ]
            elif kind < 0.2:
                statements.append("DELETE FROM public.steps WHERE mod(id, 7) = mod(%(n)s, 7)")
            elif kind < 0.4:
                statements.append(
                    "INSERT INTO public.steps SELECT max(id) + 1, %(n)s, repeat('x', 9000) FROM public.steps"
                )
            elif kind < 0.5:
                statements.append("UPDATE public.steps SET id = id + 10000 WHERE mod(id, 5) = 0")
            if rng.random() < 0.4:
                statements.insert(
                    rng.randrange(2), "UPDATE public.groups SET is_on = NOT is_on WHERE id = mod(%(n)s, 3)"
                )
            cursor.execute("BEGIN; " + "; ".join(statements), {"n": n})
            left[n] = _joined(cursor)
            cursor.execute("COMMIT")
            time.sleep(rng.choice([0, 0.01, 0.1, 0.3]))
        n += 1
        cursor.execute("UPDATE public.steps SET n = %s; UPDATE public.groups SET is_on = true", (n,))
        left[n] = _joined(cursor)
    return left


def _joined(cursor: Any) -> State:
    cursor.execute(f"SELECT count(*), coalesce(sum(id), 0) FROM public.steps WHERE {_JOINED.replace('%', '%%')}", ())  # noqa: S608  a test's own
    rows, ids = cursor.fetchone()
    return rows, int(ids)


@every(6, 3)
def test_clients_follow_the_pipeline_while_servers_are_killed(postgres_folder: Path, node: Path) -> None:
    """At each moment a client shows a state that some commit left, in order; at the end, the table.

    So does a client of a shape with a subquery, whose rows come and go with those of another table. One follows by long
    polling and one by events, over two servers that are killed in turn. A page shows it, too.
    """
    said: list[str] = []
    with (
        running_demo(postgres_folder / "demo", said.append) as demo,
        closing(connect(demo.config.postgres.connection)) as database,
    ):
        with database.cursor() as cursor:
            cursor.execute("CREATE TABLE public.steps (id int PRIMARY KEY, n bigint NOT NULL, text text)")
            cursor.execute("ALTER TABLE public.steps REPLICA IDENTITY FULL")
            cursor.execute("INSERT INTO public.steps SELECT i, 0, 'begin' FROM generate_series(1, %s) i", (_ROWS,))
            cursor.execute("CREATE TABLE public.groups (id int PRIMARY KEY, is_on boolean NOT NULL)")
            cursor.execute("ALTER TABLE public.groups REPLICA IDENTITY FULL")
            cursor.execute("INSERT INTO public.groups VALUES (0, true), (1, true), (2, false)")

        def runs() -> bool:
            demo.step()
            return demo.pipeline.has_rows

        wait_until(runs, "the demo runs", _DEADLINE_S, pause_s=1)
        add = [sys.executable, "-m", "flushtracker", "add-shape", "-", "--config", str(demo.config_file)]
        for shape in _SHAPES:
            subprocess.run([*add, "--timeout", "120"], input=shape.encode(), cwd=_ROOT, check=True, timeout=_DEADLINE_S)
        servers = [KilledServer(postgres_folder, demo.log) for _ in range(2)]
        for server in servers:
            server.start()
        # A client stops if there is no such shape; the writers copy the registry a moment later than capture has it.
        shapes = ("steps", "steps-joined")
        wait_until(
            lambda: all(each.has(shape) for each in servers for shape in shapes),
            "both serve the shapes", _DEADLINE_S, pause_s=0.5,
        )  # fmt: skip
        urls = [server.url for server in servers]
        followers, joined = ([_Follower(node, shape, mode, urls) for mode in ("poll", "sse")] for shape in shapes)
        try:
            everyone = [*followers, *joined]
            wait_until(lambda: all(each.last["shown"] for each in everyone), "all show their shape", _DEADLINE_S)
            for follower in everyone:
                assert follower.last.get("types") == "numberbigint", follower.last
            _write_while_servers_are_killed(demo, database, servers, followers, joined)
            _show(node, servers[0].url, "steps", followers[0].last["rows"])
            _show(node, servers[0].url, "steps-joined", joined[0].last["rows"])
            _run_readme(node, demo.shapes_url)
        finally:
            for follower in (*followers, *joined):
                follower.stop()
            for server in servers:
                server.kill()


def _write_while_servers_are_killed(
    demo: Demo, database: Any, servers: list[KilledServer], followers: list[_Follower], joined: list[_Follower]
) -> None:
    stop, left = Event(), dict[int, State]()
    writer = Thread(target=lambda: left.update(_steps(database, stop)))
    writer.start()
    everyone = [*followers, *joined]

    def have_followed() -> bool:
        shown = all(each.last["n"] > 20 and each.last["shown"] > 2 for each in everyone)
        # Rows have come and gone.
        return shown and all(len({rows for rows, _ in [*each.states.values()]}) > 2 for each in joined)

    end = time.monotonic() + _DEADLINE_S
    kills = 0
    try:
        while kills < _KILLS or not have_followed():
            assert time.monotonic() < end, [each.last for each in everyone]
            demo.step()
            server = servers[kills % 2]
            server.kill()
            server.start()
            kills += 1
            wait_until(partial(server.has, "steps"), "the server is back", _DEADLINE_S)
            time.sleep(_BETWEEN_KILLS_S)
    finally:
        stop.set()
        writer.join()
    assert left, "the writer has failed"
    last = max(left)
    wait_until(lambda: {each.last["n"] for each in everyone} == {last}, f"all have the last state {last}", _DEADLINE_S)
    with database.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM public.steps")
        count = cursor.fetchone()[0]
    for each in followers:
        assert each.last["rows"] == count
    for each in joined:
        assert each.states[last] == left[last]
        assert each.states.items() <= left.items(), "a state that the query never had"
    for each in everyone:
        assert each.last["problems"] == []
        assert "stopped" not in each.last


def test_clients_follow_a_log_while_servers_are_killed(tmp_path: Path, node: Path) -> None:
    """The same without the pipeline: a log that is written, merged and folded here."""
    log = tmp_path / "log"
    create_shape_log(str(log))
    columns = (ColumnBinding(1, "id", 23, -1, 0), ColumnBinding(2, "n", 20, -1, 0))
    table = TableEntry(SOURCE, TableBinding(7, ("public", "users"), ID_KEY, columns))
    register(str(log), shape_entry(), table)
    append(str(log), _transaction(1, 1, begins=True))
    servers = [KilledServer(tmp_path, log) for _ in range(2)]
    followers = list[_Follower]()
    try:
        for server in servers:
            server.start()
        wait_until(lambda: all(each.has("users") for each in servers), "both serve the shape", _DEADLINE_S, pause_s=0.5)
        followers += [_Follower(node, "users", mode, [each.url for each in servers]) for mode in ("poll", "sse")]
        wait_until(lambda: all(each.last["shown"] for each in followers), "both show the shape", _DEADLINE_S)
        rng, n = random.Random(1), 1  # noqa: S311  reproducible
        retain = RetentionPolicy(timedelta(seconds=20), least_dropped=1)
        upkeep = ShapeLogUpkeep(str(log), f"{log}_shapes", settings=MergeSettings(merge_files=4), retain=retain)
        for kills in range(4):
            for _ in range(20):
                n += 1
                append(str(log), _transaction(n, n, begins=rng.random() < 0.05))
                time.sleep(rng.choice([0, 0.05, 0.3]))
            upkeep.run(EPOCH + timedelta(seconds=n))
            servers[kills % 2].kill()
            servers[kills % 2].start()
        wait_until(lambda: all(each.last["n"] == n for each in followers), f"both have the state {n}", _DEADLINE_S)
        for follower in followers:
            assert follower.last["problems"] == []
            assert follower.last["rows"] == _ROWS
            assert follower.last["shown"] > 10
        _show(node, servers[0].url, "users", _ROWS)
    finally:
        for follower in followers:
            follower.stop()
        for server in servers:
            server.kill()


def _transaction(tx: int, n: int, *, begins: bool) -> list[Row]:
    """All rows get the same ``n``; if the shape begins with it, after a truncate."""
    operation = "insert" if begins else "update"
    rows = [item((tx, 0), "truncate")] if begins and tx > 1 else []
    rows += [item((tx, 2 * key), operation, f"k{key}", {"id": str(key), "n": str(n)}) for key in range(1, _ROWS + 1)]
    return dated([*rows, commit(tx)])


def _run_readme(folder: Path, url: str) -> None:
    """The README's lines as they are, but for the address that the demo has said, in a page: rows, and then others."""
    (lines,) = re.findall(r"^```js\n(.*?)^```", (_ROOT / "README.md").read_text(), re.M | re.S)
    given = "'http://127.0.0.1:9470/v1/shape'"
    assert lines.count(given) == 1
    client = json.dumps({"imports": {"@electric-sql/client": "./node_modules/@electric-sql/client/dist/index.mjs"}})
    (folder / "readme.html").write_text(
        f"<!doctype html><script type=importmap>{client}</script>"
        "<script>const shown = []; console.log = (rows) => shown.push(rows)</script>"
        f"<script type=module>{lines.replace(given, repr(url))}</script>"
    )
    with page_server(folder) as address, browser() as page:
        page.open(f"{address}/readme.html")
        wait_until(lambda: page.script("return shown.length") > 2, "the page shows changes", _DEADLINE_S)
        assert page.script("return shown.at(-1).length && shown.every((rows) => rows.every((row) => row.region))")
        assert not [each for each in page.errors() if "favicon" not in each]


def _show(folder: Path, url: str, shape: str, rows: int) -> None:
    """The example page shows the shape, and complains about nothing."""
    with page_server(folder) as address, browser() as page:
        page.open(f"{address}/?url={url}&shape={shape}")
        page.wait_for_state("live")
        assert page.script("return document.querySelectorAll('tbody tr').length") == min(rows, 100)
        assert page.text("state").startswith(f"{rows} rows")
        page.save("shape_page")
        page.open(f"{address}/?url={url}&shape=nothing")
        page.wait_for_state("stopped")
        assert page.text("state") == "stopped: there is no shape with this id"
