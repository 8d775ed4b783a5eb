"""A newcomer's walk: `init`, what it advises, `up`, and readers, on a database as applications have them."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from deltalake import DeltaTable

from flushtracker.cli import main
from flushtracker.config.config_keys import PROGRAMS
from flushtracker.local.free_ports import free_port, free_ports
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import sql_table
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.brokers import Broker
from tests.support.foreign_readers import duckdb_rows
from tests.support.processes import run_to_end
from tests.support.running_command import RunningCommand
from tests.support.seeds import every
from tests.support.shop_database import APPLICATION, printed_statements, run_all, shop_server
from tests.support.waiting import wait_until

_DEADLINE_S: Final = 400
_WRITES: Final = [each for each in APPLICATION if not each.startswith("DELETE")]
"""The application's statements that leave a row in each table."""


@pytest.fixture
def shop() -> Iterator[LocalPostgres]:
    with shop_server(None) as server:
        yield server


@every(4, 1)
def test_every_row_of_a_database_comes_to_its_readers(
    shop: LocalPostgres,
    broker: Broker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    topic_name: Callable[[str], str],
) -> None:
    """All of sixteen tables: the rows from before, and what the application does once everything runs.

    The readers are `read`, DuckDB with the query of docs/shape_log.md, and HTTP.
    """
    url = f"postgresql://capture@127.0.0.1:{shop.port}/postgres"
    for number in range(3):
        folder = tmp_path / f"init{number}"
        arguments = ["--kafka", broker.bootstrap_servers, "--storage", str(tmp_path / "data"), "--out", str(folder)]
        assert main(["init", "--postgres", url, *arguments, "--tables", "all", "--yes"]) == 0
        run_all(shop, printed_statements(capsys.readouterr().out))
        shop.restart()
    config = folder / "flushtracker.yaml"
    written = yaml.safe_load(config.read_text())
    # Other tests use the same broker and machine.
    written["kafka"] |= {"topic_prefix": topic_name("walk"), "partitions": 2}
    written |= {"serve": {"listen": f"127.0.0.1:{free_port()}"}}
    written |= {"status": {"listen": f"127.0.0.1:{free_ports(len(PROGRAMS))}"}}
    config.write_text(yaml.safe_dump(written))
    shapes = load_shapes(folder / "shapes.d")
    assert len(shapes) == 15
    up = RunningCommand(tmp_path, tmp_path, "up", "--config", str(config), deadline_s=_DEADLINE_S)
    try:
        up.wait_for("every shape has its rows: ")
        run_all(shop, _WRITES)
        capsys.readouterr()
        for shape in shapes:
            wait_until(
                lambda shape=shape: _read(shape.id, config, capsys) == _table(shop, shape),  # type: ignore[misc]
                f"the rows of {shape.id}",
                _DEADLINE_S,
            )
        log = str(tmp_path / "data" / "log")
        ((server,),) = shop.execute("SELECT system_identifier FROM pg_control_system()")
        source = f"{server}/1/flushtracker"
        found = duckdb_rows(log, DeltaTable(log).version(), "orders", "note", source=source)
        assert sorted(found, key=str) == sorted(shop.execute("SELECT id::text, note FROM public.orders"), key=str)
        served = re.findall(r"every shape has its rows: (\S+shape=)", up.output())[0]
        page = run_to_end(["curl", "--silent", "--fail", f"{served}ProjectMembers&offset=-1"], timeout=60).stdout
        assert [each["value"] for each in json.loads(page) if "value" in each][-1]["Role"] == "y"
        assert main(["shapes", "--config", str(config)]) == 0
        listed = capsys.readouterr().out
        assert all(re.search(rf"^{re.escape(shape.id)} .* live ", listed, re.MULTILINE) for shape in shapes), listed
    finally:
        up.kill()


def _read(shape_id: str, config: Path, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    assert main(["read", shape_id, "--format", "jsonl", "--config", str(config)]) == 0
    return _sorted([json.loads(line) for line in capsys.readouterr().out.splitlines()])


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
