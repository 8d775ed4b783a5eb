"""A newcomer's walk: `init`, what it advises, `up`, and readers, on a database as applications have them."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from deltalake import DeltaTable

from flushtracker.config.config_keys import PROGRAMS
from flushtracker.local.free_ports import free_port, free_ports
from flushtracker.local.postgres import LocalPostgres
from flushtracker.operate.init.starting_files import CONFIG, SHAPES
from flushtracker.postgres.connection import rows
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import sql_table
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.brokers import Broker
from tests.support.capture_rig import ROOT
from tests.support.foreign_readers import duckdb_rows
from tests.support.processes import run_to_end
from tests.support.running_command import RunningCommand
from tests.support.seeds import every
from tests.support.shop_database import APPLICATION, printed_statements, run_all, shop_server
from tests.support.waiting import wait_until
from tests.support.wheel_environment import WheelEnvironment

_DEADLINE_S: Final = 600
_WRITES: Final = [each for each in APPLICATION if not each.startswith("DELETE")]
"""The application's statements that leave a row in each table."""


@pytest.fixture
def shop() -> Iterator[LocalPostgres]:
    with shop_server(None) as server:
        yield server


class _Newcomer:
    """An empty folder, and the package as a wheel: nothing of the checkout is in reach."""

    def __init__(self, folder: Path) -> None:
        self._python = WheelEnvironment(folder / "venv").python
        self.folder = folder / "work"
        self.folder.mkdir()

    def run(self, *arguments: str) -> str:
        """What a command prints; it must succeed."""
        command = [str(self._python), "-m", "flushtracker", *arguments]
        done = run_to_end(command, cwd=self.folder, timeout=_DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self) -> RunningCommand:
        return RunningCommand(self.folder, self.folder, "up", deadline_s=_DEADLINE_S, python=self._python)


@every(4, 1)
def test_every_row_of_a_database_comes_to_its_readers(
    shop: LocalPostgres,
    broker: Broker,
    tmp_path: Path,
    topic_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of sixteen tables: the rows from before, and what the application does once everything runs.

    The readers are `read`, DuckDB with the query of docs/shape_log.md, and HTTP.
    """
    monkeypatch.setenv("FLUSHTRACKER_JARS", os.environ.get("FLUSHTRACKER_JARS") or str(ROOT / ".jars"))
    monkeypatch.delenv("FLUSHTRACKER_CONFIG", raising=False)
    newcomer = _Newcomer(tmp_path)
    url = f"postgresql://capture@127.0.0.1:{shop.port}/postgres"
    places = ["--kafka", broker.bootstrap_servers, "--storage", "data"]
    for folder in ("first", "second", "."):
        printed = newcomer.run("init", "--postgres", url, *places, "--out", folder, "--tables", "all", "--yes")
        run_all(shop, printed_statements(printed))
        shop.restart()
    _share_machine(newcomer.folder / CONFIG, topic_name("walk"))
    shapes = load_shapes(newcomer.folder / SHAPES)
    assert len(shapes) == 15
    up = newcomer.up()
    try:
        up.wait_for("every shape has its rows: ")
        run_all(shop, _WRITES)
        expected = {shape.id: _table(shop, shape) for shape in shapes}
        wait_until(lambda: _read(newcomer, expected) == expected, "the rows of all shapes", _DEADLINE_S)
        log = str(newcomer.folder / "data" / "log")
        ((server,),) = shop.execute("SELECT system_identifier FROM pg_control_system()")
        source = f"{server}/1/flushtracker"
        found = duckdb_rows(log, DeltaTable(log).version(), "orders", "note", source=source)
        assert sorted(found, key=str) == sorted(shop.execute("SELECT id::text, note FROM public.orders"), key=str)
        served = re.findall(r"every shape has its rows: (\S+shape=)", up.output())[0]
        page = run_to_end(["curl", "--silent", "--fail", f"{served}ProjectMembers&offset=-1"], timeout=60).stdout
        assert [each["value"] for each in json.loads(page) if "value" in each][-1]["Role"] == "y"
        listed = newcomer.run("shapes")
        assert all(re.search(rf"^{re.escape(shape.id)} .* live ", listed, re.MULTILINE) for shape in shapes), listed
    finally:
        up.kill()


def _share_machine(config: Path, topic_prefix: str) -> None:
    """Change what was written so that other tests may use the same broker and machine."""
    written = yaml.safe_load(config.read_text())
    written["kafka"] |= {"topic_prefix": topic_prefix, "partitions": 2}
    written |= {"serve": {"listen": f"127.0.0.1:{free_port()}"}}
    written |= {"status": {"listen": f"127.0.0.1:{free_ports(len(PROGRAMS))}"}}
    config.write_text(yaml.safe_dump(written))


def _read(newcomer: _Newcomer, shapes: Iterable[str]) -> dict[str, list[Any]]:
    """The rows of all shapes as of one moment."""
    found: dict[str, list[Any]] = {shape: [] for shape in shapes}
    for line in newcomer.run("read", *found, "--format", "jsonl").splitlines():
        row = json.loads(line)
        found[row["shape_id"]].append(row["row"])
    return {shape: _sorted(rows) for shape, rows in found.items()}


def _table(server: LocalPostgres, shape: ShapeDefinition) -> list[Any]:
    """The table's rows, each value as PostgreSQL's text."""
    with closing(server.connect()) as connection:
        names = shape.columns or [
            name
            for (name,) in rows(
                connection,
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                [sql_table(shape.table)],
            )
        ]
        columns = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}"::text' for name in names)
        found = rows(connection, f"SELECT {columns} FROM {sql_table(shape.table)}")  # noqa: S608  names of our own
    return _sorted([dict(zip(names, row, strict=True)) for row in found])


def _sorted(found: list[Any]) -> list[Any]:
    return sorted(found, key=lambda row: sorted((name, value or "") for name, value in row.items()))
