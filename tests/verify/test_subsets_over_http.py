"""Electric's own client merges subsets with its stream, in Node, over two servers that are killed in turn."""

import json
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

from flushtracker.events.registry_events import TableEntry
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from tests.support.folded_log import EPOCH, dated
from tests.support.key_bindings import ID_KEY
from tests.support.killed_server import KilledServer
from tests.support.node_folder import node_folder
from tests.support.sample_registry import register, shape_entry
from tests.support.seeds import in_turn
from tests.support.shape_log_rows import SOURCE, Row, append, commit, item
from tests.support.waiting import wait_until

_PAGE: Final = Path(__file__).parents[2] / "examples" / "shape_page"
_DEADLINE_S: Final = 300.0
_KEYS: Final = 30

Table = dict[str, str]
"""``n`` by ``id``."""


@contextmanager
def _client(node: Path, start: str, servers: list[KilledServer]) -> Iterator[dict[str, Any]]:
    """What a client shows, as of now."""
    command = ["node", "subset_shape.mjs", "users", start, *(each.url for each in servers)]
    process = subprocess.Popen(command, cwd=node, stdout=subprocess.PIPE, text=True)
    last: dict[str, Any] = {"shown": 0, "subsets": 0}

    def read() -> None:
        for line in process.stdout or ():
            last.update(json.loads(line))

    Thread(target=read, daemon=True).start()
    try:
        yield last
    finally:
        process.kill()
        process.wait()


class _Users:
    """A table whose transactions are of few rows each; of those that commit, some began long before."""

    def __init__(self, log: str) -> None:
        self.log, self.rng = log, random.Random(1)  # noqa: S311  reproducible
        self.rows: Table = {}
        self.tx = 0
        self._xids = [100]

    def transaction(self) -> None:
        self.tx += 1
        self._xids.append(self._xids[-1] + self.rng.randint(1, 3))
        xid = self._xids.pop(self.rng.choice([0, -2, -2]) if len(self._xids) > 1 else 0)
        items = list[Row]()
        for key in map(str, self.rng.sample(range(1, _KEYS + 1), 4)):
            operation = "insert" if key not in self.rows else self.rng.choice(["update", "update", "delete"])
            value = {"id": key} if operation == "delete" else {"id": key, "n": str(self.rng.randint(1, 6))}
            items.append(item((self.tx, 2 * len(items)), operation, f"k{key}", dict(value)))
            if operation == "delete":
                del self.rows[key]
            else:
                self.rows[key] = value["n"]
        append(self.log, [row | {"xid": xid} for row in dated([*items, commit(self.tx)])])


@pytest.mark.parametrize("start", in_turn(["now", "-1"]))
def test_subsets_and_the_stream_lead_to_the_tables_rows(tmp_path: Path, start: str) -> None:
    """Each row that the client shows is the table's, once that changes no more; none that it asked for is missing."""
    log = str(tmp_path / "log")
    create_shape_log(log)
    columns = (ColumnBinding(1, "id", 23, -1, 0), ColumnBinding(2, "n", 20, -1, 0))
    register(log, shape_entry(), TableEntry(SOURCE, TableBinding(7, ("public", "users"), ID_KEY, columns)))
    users = _Users(log)
    for _ in range(20):
        users.transaction()
    node = node_folder(_PAGE, Path(__file__).with_name("subset_shape.mjs"))
    servers = [KilledServer(tmp_path, Path(log)) for _ in range(2)]
    upkeep = ShapeLogUpkeep(
        log,
        f"{log}_shapes",
        settings=MergeSettings(merge_files=4),
        retain=RetentionPolicy(timedelta(seconds=60), least_dropped=1),
    )
    try:
        for server in servers:
            server.start()
        wait_until(lambda: all(each.has("users") for each in servers), "both serve the shape", _DEADLINE_S, pause_s=0.5)
        with _client(node, start, servers) as last:
            for kills in range(3):
                for _ in range(15):
                    users.transaction()
                    time.sleep(users.rng.choice([0.02, 0.1, 0.2]))
                upkeep.run(EPOCH + timedelta(seconds=users.tx))
                asked = last["subsets"]
                wait_until(lambda n=asked: last["subsets"] > n + 3, "more subsets", _DEADLINE_S)  # type: ignore[misc]
                servers[kills % 2].kill()
                servers[kills % 2].start()
            wanted = {key: n for key, n in users.rows.items() if 8 <= int(key) <= 14}

            def is_right() -> bool:
                rows: Table = last.get("rows", {})
                return bool(last.get("isUpToDate")) and wanted.items() <= rows.items() <= users.rows.items()

            wait_until(is_right, "what it shows is the table's", _DEADLINE_S)
            page = sorted(map(int, users.rows))[1:3]
            wait_until(lambda: last.get("page") == page, "a page of the rows", _DEADLINE_S)
            assert last["refused"] == []
            assert last["shown"] > 1
    finally:
        for server in servers:
            server.kill()
