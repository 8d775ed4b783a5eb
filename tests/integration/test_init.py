"""``flushtracker init`` on databases as applications have them: what it says is right, and what it advises works."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest

from flushtracker.cli import main
from flushtracker.postgres.connection import rows
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.trials.local.postgres import LocalPostgres
from tests.support.new_server import server_folder
from tests.support.shop_database import APPLICATION, SCHEMA

_CATALOGS: Final = (
    *("pg_class", "pg_attribute", "pg_index", "pg_constraint", "pg_namespace", "pg_publication", "pg_publication_rel"),
    *("pg_roles", "pg_auth_members", "pg_database", "pg_db_role_setting", "pg_replication_slots", "pg_type", "pg_proc"),
)
_REFUSED: Final = {
    "audit.salaries": "this role may not read all rows of audit.salaries",
    "public.audit_log": "table public.audit_log has no key",
    "public.coupons": "no replica identity: public.coupons; PostgreSQL would refuse their updates and deletes",
    "public.metrics": "table public.metrics has no key",
    "public.open_orders": "public.open_orders is a view; name the table that it reads",
    "public.playlist": "table public.playlist has no key",
    "public.sessions": "table public.sessions is unlogged",
}


@pytest.fixture
def shop() -> Iterator[LocalPostgres]:
    """A server as it is installed, without logical decoding or room for a slot, with the shop's database."""
    with server_folder() as folder, ExitStack() as stack:
        server = LocalPostgres(folder)
        for name in ("wal_level", "max_replication_slots"):
            del server.settings[name]
        server.settings["autovacuum"] = "off"
        stack.enter_context(server)
        server.execute("ALTER SYSTEM SET max_replication_slots = 0")
        server.restart()
        run_all(server, SCHEMA)
        run_all(server, APPLICATION)
        yield server


def run_all(server: LocalPostgres, statements: Sequence[str]) -> None:
    """Run statements in one session of a superuser; each must work."""
    with closing(server.connect()) as connection:
        for statement in statements:
            rows(connection, statement)


def catalogs(server: LocalPostgres) -> list[Any]:
    """All that anybody could have changed, and the next transaction id, which any change would have taken."""
    found: list[Any] = [server.execute(f"SELECT t.*::text FROM {name} t ORDER BY 1") for name in _CATALOGS]  # noqa: S608
    files = server.execute("SELECT name, setting FROM pg_settings WHERE name <> 'application_name' ORDER BY name")
    return [*found, files, server.execute("SELECT txid_snapshot_xmax(txid_current_snapshot())")]


def url(server: LocalPostgres, role: str = "capture") -> str:
    return f"postgresql://{role}@127.0.0.1:{server.port}/postgres"


def refusals(text: str) -> dict[str, str]:
    """The refused tables, with the reasons."""
    lines = text.partition("\nRefused:\n")[2].splitlines()
    return dict(re.findall(r"^  (\S+) \(.*?\): (.*)$", "\n".join(lines), re.MULTILINE))


def statements(text: str) -> list[str]:
    """Everything that is to be pasted into psql: the lines that begin deeper than those of the tables."""
    return re.findall(r"^  +((?:ALTER|CREATE|GRANT|SELECT|DO) .*);$", text, re.MULTILINE)


def initialized(
    capsys: pytest.CaptureFixture[str], server: LocalPostgres, folder: Path, *arguments: str, role: str = "capture"
) -> tuple[int, str, str]:
    exit_code = main(["init", "--postgres", url(server, role), "--out", str(folder), *arguments])
    out, err = capsys.readouterr()
    return exit_code, out, err


def test_what_init_advises_works_and_breaks_no_statement_of_the_application(
    shop: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Followed to the letter, until nothing is left to do: the shapes are right, and every table is published."""
    before = catalogs(shop)
    exit_code, out, _ = initialized(capsys, shop, tmp_path / "first", "--tables", "all", "--yes")
    assert exit_code == 0
    assert catalogs(shop) == before
    refused = refusals(out)
    assert {name: refused[name][: len(reason)] for name, reason in _REFUSED.items()} == _REFUSED
    assert refused.keys() == _REFUSED.keys()
    assert re.search(r"^  public\.readings +200,000 +1\d\.\d MB +id +default +-$", out, re.MULTILINE)
    assert re.search(r"^  public\.events .* at, id +default +2$", out, re.MULTILINE)
    for lack in ("wal_level is replica, not logical", "all 0 of max_replication_slots", "max_slot_wal_keep_size is -1"):
        assert lack in out
    first = load_shapes(tmp_path / "first" / "shapes.d")
    assert len(first) == 9
    assert {shape.id: shape.columns for shape in first if shape.columns} == {"crm.orders": ("id", "label")}

    run_all(shop, statements(out))
    shop.restart()
    run_all(shop, APPLICATION)
    exit_code, out, _ = initialized(capsys, shop, tmp_path / "second", "--tables", "all", "--yes")
    assert (exit_code, refusals(out).keys()) == (0, {"public.open_orders"})
    assert "wal_level" not in out
    assert "max_replication_slots" not in out
    # What was not ready at first is not in the publication that was created for the others.
    later = statements(out)
    assert len(later) == len(_REFUSED) - 1
    assert all(each.startswith('ALTER PUBLICATION "flushtracker" ADD TABLE ') for each in later)
    run_all(shop, later)
    run_all(shop, APPLICATION)

    exit_code, out, _ = initialized(capsys, shop, tmp_path / "third", "--tables", "all", "--yes")
    assert (exit_code, statements(out)) == (0, [])
    folder = tmp_path / "third" / "shapes.d"
    assert {shape.table for shape in load_shapes(folder)} > {("Sales Dept", "Order Lines, old"), ("audit", "salaries")}
    checked = main(["check", "--shapes", str(folder), "--connection", url(shop), "--publication", "flushtracker"])
    assert (checked, "15 shapes, no problem" in capsys.readouterr().out) == (0, True)
