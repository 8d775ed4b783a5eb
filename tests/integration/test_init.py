"""``flushtracker init`` on databases as applications have them: what it says is right, and what it advises works."""

import re
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.cli import main
from flushtracker.local.free_ports import free_port
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect_for_snapshot, rows
from flushtracker.postgres.slot import check_server, create_slot
from flushtracker.shapes.item_key import sql_table
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.seeds import in_turn
from tests.support.server_versions import runs_here
from tests.support.shop_database import APPLICATION, printed_statements, run_all, shop_server

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


@pytest.fixture(params=in_turn([14, 18]) if runs_here() else [None])
def shop(request: pytest.FixtureRequest) -> Iterator[LocalPostgres]:
    with shop_server(request.param) as server:
        yield server


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

    run_all(shop, printed_statements(out))
    shop.restart()
    run_all(shop, APPLICATION)
    exit_code, out, _ = initialized(capsys, shop, tmp_path / "second", "--tables", "all", "--yes")
    assert (exit_code, set(refusals(out))) == (0, {"public.open_orders"})
    assert "wal_level" not in out
    assert "max_replication_slots" not in out
    # What was not ready at first is not in the publication that was created for the others.
    later = printed_statements(out)
    assert len(later) == len(_REFUSED) - 1
    assert all(each.startswith('ALTER PUBLICATION "flushtracker" ADD TABLE ') for each in later)
    run_all(shop, later)
    run_all(shop, APPLICATION)

    kafka = ("--kafka", "broker.internal:9092")
    exit_code, out, _ = initialized(capsys, shop, tmp_path / "third", "--tables", "all", "--yes", *kafka)
    assert (exit_code, printed_statements(out)) == (0, [])
    assert out.endswith(f"next: flushtracker up --config {tmp_path}/third/flushtracker.yaml\n")
    folder = tmp_path / "third" / "shapes.d"
    assert {shape.table for shape in load_shapes(folder)} > {("Sales Dept", "Order Lines, old"), ("audit", "salaries")}
    checked = main(["check", "--shapes", str(folder), "--connection", url(shop), "--publication", "flushtracker"])
    assert (checked, "15 shapes, no problem" in capsys.readouterr().out) == (0, True)
    # As capture and its snapshots do it, with the role that was asked about.
    with closing(connect_for_snapshot({**shop.options, "user": "capture"})) as connection:
        check_server(connection)
        assert create_slot(connection, "flushtracker")
        for shape in load_shapes(folder):
            rows(connection, f"SELECT * FROM {sql_table(shape.table)}")  # noqa: S608  our own names


def test_broker_on_this_machine_that_does_not_answer_can_be_started_by_up(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that is printed says so, and only then."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")

    def printed(folder: str, port: int) -> list[str]:
        options = ("--tables", "all", "--yes", "--kafka", f"localhost:{port}")
        exit_code, out, _ = initialized(capsys, postgres, tmp_path / folder, *options, role=postgres.user)
        assert exit_code == 0
        return [line for line in out.splitlines() if "kafka" in line]

    with socket.create_server(("127.0.0.1", 0)) as broker:
        port = broker.getsockname()[1]
        assert printed("answers", port) == []
    fact, following = printed("away", port)
    assert fact == f"nothing answers at localhost:{port}; flushtracker up --with-kafka runs a broker there"
    assert following.endswith(f"flushtracker up --with-kafka --config {tmp_path}/away/flushtracker.yaml")


def test_names_that_need_quoting_are_written_so_that_they_are_read_back(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In YAML, in shapes files and in SQL, whatever characters they have."""
    names = ["no", "Null", "a: b", "- x", "# y", "${HOME}", "$${a}", "q\"uo'te", "back\\slash", "tab\tline\nend", "🙂é"]
    names += [
        "\x7f\x85\u2028\u200b",
        " ",
        "x" * 63,
        "a,b",
        "{c: d}",
        "*e",
        "&f",
        "!g",
        "%h",
        "@i",
        "`j",
        "12",
        "..",
        ".k",
    ]
    with closing(postgres.connect()) as connection:
        rows(connection, 'CREATE SCHEMA "${Odd}: schema"')
        for name in names:
            typed = psycopg.sql.Identifier("${Odd}: schema", name).as_string()
            column = psycopg.sql.Identifier(name).as_string()
            rows(connection, f"CREATE TABLE {typed} ({column} int PRIMARY KEY, watched regclass)")
    exit_code, out, _ = initialized(capsys, postgres, tmp_path, "--tables", "all", "--yes", role="postgres")
    assert (exit_code, refusals(out)) == (0, {})
    shapes = load_shapes(tmp_path / "shapes.d")
    assert {shape.table for shape in shapes} == {("${Odd}: schema", name) for name in names}
    # The other column cannot be part of a shape, so the file names this one.
    assert all(shape.columns == (shape.table[1],) for shape in shapes)
    keyless = 'tab\tback\\slash \u200b"\n🙂'
    postgres.execute(f"CREATE TABLE {psycopg.sql.Identifier(keyless).as_string()} (id int)")
    for folder, is_refused in (("before", True), ("after", False)):
        exit_code, out, _ = initialized(
            capsys, postgres, tmp_path / folder, "--tables", "all", "--yes", role="postgres"
        )
        assert (exit_code, "has no key" in out) == (0, is_refused)
        run_all(postgres, printed_statements(out))
    checked = main(["check", "--shapes", str(tmp_path / "shapes.d"), "--connection", url(postgres, "postgres")])
    assert (checked, f"{len(names)} shapes, no problem" in capsys.readouterr().out) == (0, True)


def test_a_thousand_tables_take_as_many_queries_as_ten(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number does not grow with the tables, also of tables without a key or a replica identity."""
    counts, execute = [0], psycopg.ClientCursor.execute

    def counted(*arguments: Any, **more: Any) -> Any:
        counts[-1] += 1
        return execute(*arguments, **more)

    for last in (10, 1000):
        postgres.execute(
            f"""DO $$ BEGIN FOR n IN 1..{last} LOOP
              EXECUTE format('CREATE TABLE IF NOT EXISTS t%s (id int PRIMARY KEY)', n);
              EXECUTE format('CREATE TABLE IF NOT EXISTS keyless%s (id int)', n % 100);
              EXECUTE format('CREATE TABLE IF NOT EXISTS nothing%s (id int NOT NULL UNIQUE)', n % 100);
            END LOOP; END $$"""
        )
        monkeypatch.setattr(psycopg.ClientCursor, "execute", counted)
        exit_code, out, _ = initialized(
            capsys, postgres, tmp_path / str(last), "--tables", "all", "--yes", role="postgres"
        )
        monkeypatch.undo()
        assert (exit_code, len(load_shapes(tmp_path / str(last) / "shapes.d"))) == (0, last)
        assert len(refusals(out)) == 2 * min(last, 100)
        counts.append(0)
    assert counts[0] == counts[1] < 100


def test_files_that_are_there_are_not_overwritten(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is anything written beside them; the message says what to do."""
    postgres.execute("CREATE TABLE a (id int PRIMARY KEY)")
    for name in ("flushtracker.yaml", "shapes.d"):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        (folder / name).write_text("mine")
        exit_code, out, err = initialized(capsys, postgres, folder, "--tables", "all", "--yes", role="postgres")
        assert (exit_code, out) == (2, "")
        assert f"{folder / name} is there already, and init overwrites nothing: name another directory" in err
        assert {path.name: path.read_text() for path in folder.iterdir()} == {name: "mine"}
    exit_code, _, err = initialized(
        capsys, postgres, folder / "shapes.d" / "below", "--tables", "all", "--yes", role="postgres"
    )
    assert exit_code == 2
    assert "cannot be written: Not a directory; nothing was written" in err
    first = initialized(capsys, postgres, tmp_path / "new", "--tables", "all", "--yes", role="postgres")
    again = initialized(capsys, postgres, tmp_path / "new", "--tables", "all", "--yes", role="postgres")
    assert (first[0], again[0]) == (0, 2)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["flushtracker.yaml", "shapes.d"]


def test_tables_are_chosen_on_a_terminal(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is wrong is asked for again; nothing is written before the last question."""
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)", 'CREATE TABLE "Users" (id int PRIMARY KEY)')
    postgres.execute("CREATE TABLE log (line text)")
    answers: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: answers.pop(0))
    for given, expected in (([""], 1), (["public.orders", "n"], 1)):
        answers[:] = given
        exit_code, out, _ = initialized(capsys, postgres, tmp_path / "no", role="postgres")
        assert (exit_code, out.splitlines()[-1].endswith("nothing was written")) == (expected, True)
        assert not (tmp_path / "no").exists()
    answers[:] = ["orders", "public.order", "public.log", 'public."Users", public.orders', "y"]
    exit_code, out, _ = initialized(capsys, postgres, tmp_path / "yes", role="postgres")
    assert (exit_code, answers) == (0, [])
    for line in (
        "table 'orders' is not of the form schema.name",
        "there is no table public.order in the list; did you mean public.orders",
        "public.log is refused: table public.log has no key",
    ):
        assert line in out
    assert [shape.id for shape in load_shapes(tmp_path / "yes" / "shapes.d")] == ["Users", "orders"]


def test_without_a_terminal_the_list_is_printed_and_the_options_are_named(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container or a CI: nothing waits for an answer."""
    postgres.execute("CREATE TABLE a (id int PRIMARY KEY)")
    exit_code, out, err = initialized(capsys, postgres, tmp_path / "x", role="postgres")
    assert (exit_code, "public.a" in out) == (2, True)
    assert "choose with --tables all, or --tables public.a,public.b" in err
    exit_code, _, err = initialized(capsys, postgres, tmp_path / "x", "--tables", "public.a", role="postgres")
    assert (exit_code, "confirm it with --yes" in err) == (2, True)
    assert not (tmp_path / "x").exists()


def test_a_locked_table_is_listed_without_a_wait(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its size is unknown, and the server has taken no lock for init that could delay the application."""
    postgres.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    with closing(postgres.connect()) as connection:
        rows(connection, "BEGIN; LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        exit_code, out, _ = initialized(capsys, postgres, tmp_path, "--tables", "all", "--yes", role="postgres")
    assert exit_code == 0
    assert re.search(r"^  public\.a +\? +\? +id ", out, re.MULTILINE)
    assert re.search(r"^  public\.b +0 +\d.*B +id ", out, re.MULTILINE)


def test_a_role_that_may_little_is_told_what_it_needs(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It owns its tables, so it can publish them itself once it may create a publication."""
    run_all(postgres, ["CREATE ROLE app LOGIN", "CREATE SCHEMA app AUTHORIZATION app", "SET ROLE app"])
    run_all(postgres, ["SET ROLE app", "CREATE TABLE app.a (id int PRIMARY KEY)"])
    exit_code, out, _ = initialized(capsys, postgres, tmp_path / "1", "--tables", "all", "--yes", role="app")
    needed = ['ALTER ROLE "app" REPLICATION', 'GRANT CREATE ON DATABASE "postgres" TO "app"']
    assert (exit_code, printed_statements(out)[:2]) == (0, needed)
    run_all(postgres, printed_statements(out))
    exit_code, out, _ = initialized(capsys, postgres, tmp_path / "2", "--tables", "all", "--yes", role="app")
    assert (exit_code, printed_statements(out)) == (0, [])


def test_a_password_is_written_and_printed_nowhere(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file names the variables that stand for it, and every program reads it."""
    postgres.execute("CREATE TABLE a (id int PRIMARY KEY)")
    given = f"postgresql://postgres:hunter2@127.0.0.1:{postgres.port}/postgres?sslpassword=hunter2&sslmode=disable"
    assert main(["init", "--postgres", given, "--out", str(tmp_path), "--tables", "all", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert "no secret is in it: set PGPASSWORD and PGSSLPASSWORD where the programs run, or use a passfile" in out
    texts = [out, err]
    texts += [path.read_text() for path in tmp_path.rglob("*.yaml")]
    assert not any("hunter2" in text for text in texts)
    config = tmp_path / "flushtracker.yaml"
    uri = f"postgresql://postgres:${{PGPASSWORD}}@127.0.0.1:{postgres.port}/postgres?"
    assert f'postgres: "{uri}' in config.read_text()
    assert "sslpassword=${PGSSLPASSWORD}" in config.read_text()
    assert main(["config", "--config", str(config)]) == 2
    assert "PGPASSWORD" in capsys.readouterr().err
    password = ("password", "hunt:er/2@${x}")
    monkeypatch.setenv("PGPASSWORD", password[1])
    monkeypatch.setenv("PGSSLPASSWORD", "hunter2")
    assert main(["config", "--config", str(config)]) == 0
    assert password in load_capture_config(config).postgres.connection.items()


@pytest.mark.parametrize("kafka", ["localhost:9092", "one.example:9092,two.example:9092", "127.0.0.1:9093"])
def test_every_program_reads_what_is_written(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str], kafka: str
) -> None:
    """With storage and a folder whose names YAML would read otherwise."""
    postgres.execute("CREATE TABLE a (id int PRIMARY KEY)")
    folder = tmp_path / "it's #1: ${HOME}"
    arguments = ["--tables", "all", "--yes", "--kafka", kafka, "--storage", str(tmp_path / "a: b")]
    assert initialized(capsys, postgres, folder, *arguments, role="postgres")[0] == 0
    config = folder / "flushtracker.yaml"
    assert main(["config", "--config", str(config)]) == 0
    read = load_capture_config(config)
    assert (read.shapes, read.acks) == (folder / "shapes.d", str(tmp_path / "a: b" / "acks"))
    assert (read.kafka.bootstrap_servers, read.kafka.replication_factor) == (kafka, 3 if "," in kafka else 1)
    assert {**read.postgres.connection} == postgres.options
    assert [shape.id for shape in load_shapes(read.shapes)] == ["a"]


def test_each_way_a_connection_fails_is_an_error_of_its_own(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its exit code, one line, and without a secret."""
    nobody = free_port()
    for given, exit_code, message in (
        (f"postgresql://x:hunter2@127.0.0.1:{nobody}/postgres", 7, "cannot be reached"),
        (f"postgresql://postgres:hunter2@127.0.0.1:{postgres.port}/nope", 7, 'database "nope" does not exist'),
        (f"postgresql://nope:hunter2@127.0.0.1:{postgres.port}/postgres", 7, 'role "nope" does not exist'),
        (f"postgresql://postgres:hunter2@127.0.0.1:{postgres.port}/postgres?sslmode=require", 7, "support SSL"),
        ("postgresql://db:hunter2@[oops", 2, "the connection is not one of libpq"),
        ("mysql://root:hunter2@db/app", 2, "the connection is not one of libpq"),
    ):
        found = main(["init", "--postgres", given, "--out", str(tmp_path / "x"), "--tables", "all", "--yes"])
        err = capsys.readouterr().err
        assert (found, message in err, err.count("\n"), "hunter2" in err) == (exit_code, True, 1, False), err
    assert not (tmp_path / "x").exists()


def test_keys_are_added_where_that_certainly_works(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No statement is printed that fails, or by which rows are refused that the application may write."""
    run_all(
        postgres,
        [
            "CREATE TABLE named (id int, row_id int)",
            "CREATE TABLE nothing (a int)",
            "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
            "CREATE TABLE nested (a int, b int) PARTITION BY RANGE (a)",
            "CREATE TABLE nested_1 PARTITION OF nested FOR VALUES FROM (1) TO (9) PARTITION BY RANGE (b)",
            "CREATE TABLE nested_1_1 PARTITION OF nested_1 FOR VALUES FROM (1) TO (9)",
            "CREATE TABLE listed (a int) PARTITION BY LIST (a)",
            "CREATE TABLE listed_null PARTITION OF listed FOR VALUES IN (NULL)",
            "CREATE TABLE defaulted (a int) PARTITION BY RANGE (a)",
            "CREATE TABLE defaulted_rest PARTITION OF defaulted DEFAULT",
            "CREATE TABLE computed (a int) PARTITION BY HASH ((a + 1))",
            "CREATE TABLE computed_0 PARTITION OF computed FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
            "CREATE TYPE pair AS (a int, b int)",
            "CREATE TABLE typed OF pair",
            "CREATE TABLE parent (a int PRIMARY KEY)",
            "CREATE TABLE child () INHERITS (parent)",
        ],
    )
    values = {"listed": "NULL", "defaulted": "NULL", "named": "1", "nested": "1, 1", "computed": "NULL", "nothing": "1"}
    values |= {"typed": "1, 2", "child": "1"}
    application = [f"INSERT INTO {table} VALUES ({each}), ({each})" for table, each in values.items()]  # noqa: S608
    run_all(postgres, application)
    exit_code, out, _ = initialized(capsys, postgres, tmp_path / "1", role="postgres")
    assert exit_code == 1
    assert "no table can have a shape; run the statements above, and then init again" in out
    assert "-- shapes can be on its children, which are tables of their own" in out
    run_all(postgres, printed_statements(out))
    run_all(postgres, application)
    exit_code, out, _ = initialized(capsys, postgres, tmp_path / "2", "--tables", "all", "--yes", role="postgres")
    refused = {f"public.{name}" for name in ("computed", "defaulted", "listed", "parent", "typed")}
    assert (exit_code, set(refusals(out))) == (0, refused)
