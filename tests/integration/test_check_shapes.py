"""``flushtracker check``: everything that is wrong with a shapes file, with a server and without one."""

from pathlib import Path
from typing import Final

import pytest

from flushtracker.cli import main
from flushtracker.local.postgres import LocalPostgres
from flushtracker.operate.shapes.catalog_check import CAPTURE_SETS_IT

_TABLES: Final = (
    "CREATE TABLE users (id int PRIMARY KEY, region text NOT NULL, age int)",
    "CREATE VIEW grown_ups AS SELECT * FROM users WHERE age > 17",
    "CREATE TABLE log (line text)",
    "CREATE TABLE unkeyed (id int UNIQUE NOT NULL, name text)",
)
_SHAPES: Final = """\
shapes:
  - {id: right, table: public.users, where: id > 5}
  - {id: view, table: public.grown_ups}
  - {id: typo, table: public.user}
  - id: columns
    table: public.users
    columns: [id, Regoin]
    where: aeg > 5 AND ID > 3
  - {id: key, table: public.users, primary_key: [region]}
  - {id: type, table: public.users, where: id = 'x'}
  - {id: old rows, table: public.users, where: region = 'eu'}
  - {id: keyless, table: public.log}
  - {id: syntax, table: public.users, where: id >}
  - {id: unkeyed, table: public.unkeyed}
  - {id: right, table: public.users}
  - {tabel: public.users}
"""
_ALWAYS: Final = (
    "line 16: shapes[11].id is missing",
    "line 15: shape right: duplicate id, first on line 2; each shape needs its own",
)


def checked(folder: Path, capsys: pytest.CaptureFixture[str], text: str, *arguments: str) -> tuple[int, list[str]]:
    """The exit code, and the printed lines without the path of the file."""
    path = folder / "shapes.yaml"
    path.write_text(text)
    exit_code = main(["check", "--shapes", str(path), *arguments])
    return exit_code, capsys.readouterr().out.replace(f"{path} ", "").replace(f"{path}: ", "").splitlines()


def test_every_problem_is_listed_with_its_line(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """First those of the file, then those of the catalog, by the code that capture uses; no publication is needed."""
    postgres.execute(*_TABLES)
    connection = " ".join(f"{name}={value}" for name, value in postgres.options.items())
    exit_code, lines = checked(tmp_path, capsys, _SHAPES, "--connection", connection)
    lacks = "which the table does not have; did you mean"
    advice = "correct the name, and put it in double quotes if it has capitals"
    expected = [
        *_ALWAYS,
        "line 3: shape 'view': public.grown_ups is a view; name the table that it reads",
        "line 4: shape 'typo': there is no table public.user in this database; did you mean public.users",
        "line 7: shape 'columns' on public.users: columns names Regoin, which the table lacks; it has id, region, age",
        f"line 8: shape 'columns': public.users: where reads column \"aeg\", {lacks} age?; {advice}",
        "line 9: shape 'key': the key of table public.users (region) may be that of several rows",
        "line 9: shape 'key' on public.users: primary_key names region, but old rows contain only id; ALTER TABLE",
        "line 10: shape 'type': public.users: where has the literal \"x\", which is not of type integer",
        "line 11: shape 'old rows' on public.users: where reads region, but old rows contain only id; ALTER TABLE",
        "line 12: shape 'keyless': table public.log has no key: it needs a primary key",
        "line 13: shape 'syntax': where \"id >\" is not one SQL condition",
        "line 14: shape 'unkeyed': no replica identity: public.unkeyed; PostgreSQL would refuse their updates and",
    ]
    assert lines[-3].endswith('; ALTER TABLE "public"."unkeyed" REPLICA IDENTITY USING INDEX "unkeyed_id_key"')
    assert [line[: len(start)] for line, start in zip(lines, expected, strict=False)] == expected
    assert lines[len(expected) :] == [
        f"note: {CAPTURE_SETS_IT}",
        f"12 shapes, {len(expected)} problems {lines[-1][lines[-1].index('(') :]}",
    ]
    assert exit_code == 1
    right = _SHAPES.splitlines(keepends=True)[:2]
    exit_code, (line,) = checked(tmp_path, capsys, "".join(right), "--connection", connection)
    assert (exit_code, line[:20]) == (0, "1 shape, no problem ")


def test_with_a_publication_what_it_omits_is_a_problem(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table that is not in it is none, because capture adds it; one that is in it needs no replica identity."""
    postgres.execute(
        "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int UNIQUE NOT NULL)", "CREATE PUBLICATION p"
    )
    connection = " ".join(f"{name}={value}" for name, value in postgres.options.items())
    arguments = ("--connection", connection, "--publication", "p")
    shapes = "shapes: [{id: a, table: public.a}, {id: b, table: public.b}]\n"
    for statement, problem in (
        ("", "shape 'b': no replica identity"),
        ("ALTER PUBLICATION p ADD TABLE b", ""),
        ("ALTER PUBLICATION p ADD TABLE a WHERE (id > 0)", "shape 'a': the publication has a row filter"),
    ):
        if statement:
            postgres.execute(statement)
        exit_code, lines = checked(tmp_path, capsys, shapes, *arguments)
        assert (exit_code, [line[: len(f"line 1: {problem}")] for line in lines[:-1]]) == (
            (1, [f"line 1: {problem}"]) if problem else (0, [])
        )
    assert main(["check", "--shapes", str(tmp_path / "shapes.yaml"), *arguments[:3], "nope"]) == 1
    assert capsys.readouterr().out.count("there is no publication nope\n") == 1


def test_generated_columns_that_shapes_lack_are_noted(
    postgres: LocalPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shape that lists its columns has all of them."""
    postgres.execute(
        "CREATE TABLE a (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id) STORED)",
        "CREATE TABLE b (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id) STORED)",
        "CREATE PUBLICATION p FOR TABLE a, b",
    )
    connection = " ".join(f"{name}={value}" for name, value in postgres.options.items())
    shapes = "shapes: [{id: a, table: public.a}, {id: b, table: public.b, columns: [id]}]\n"
    exit_code, lines = checked(tmp_path, capsys, shapes, "--connection", connection, "--publication", "p")
    note, count = lines
    assert note.startswith("note: shapes on public.a lack its generated columns s: publication p does not send them;")
    assert (exit_code, count[:20]) == (0, "2 shapes, no problem")


def test_a_copy_of_a_whole_table_is_noted_and_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a shape with subqueries has what no condition leaves out."""
    query = "SELECT id FROM public.teams WHERE region = 'eu'"
    shapes = f"""shapes:
  - {{id: all, table: public.users, where: "team IN ({query})"}}
  - {{id: few, table: public.users, where: "age > 7 AND team IN ({query})"}}
"""
    exit_code, lines = checked(tmp_path, capsys, shapes)
    assert exit_code == 0
    note, count = lines
    assert note.startswith("note: line 2: shape 'all': its log has a copy of all rows of public.users; say more")
    assert count == "2 shapes, no problem (no server was asked about tables and columns)"


def test_without_a_server_only_the_file_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so. A condition is parsed; a file that is no YAML is one problem; no server is another exit code."""
    exit_code, lines = checked(tmp_path, capsys, _SHAPES)
    assert (exit_code, tuple(lines[:2]), len(lines)) == (1, _ALWAYS, 4)
    assert lines[2].startswith("line 13: shape 'syntax': where")
    assert lines[3] == "12 shapes, 3 problems (no server was asked about tables and columns)"
    exit_code, (line,) = checked(tmp_path, capsys, "shapes: [")
    assert (exit_code, line[:6]) == (1, "line 1")
    assert checked(tmp_path, capsys, "shapes: []", "--connection", "host=127.0.0.1 port=1")[0] == 7
    assert checked(tmp_path, capsys, "shapes: []", "--connection", "nonsense")[0] == 2
