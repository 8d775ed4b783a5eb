"""``conf/shapes.yaml``: how a definition is read, and the message for each wrong one."""

import re
from pathlib import Path

import pytest

from flushtracker.config.table_names import parse_table
from flushtracker.errors import ConfigError, ShapeError
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.shapes.shapes_file import load_shapes, read_shapes_file
from tests.support.config_files import DURATION, ConfigFile

FILE = ConfigFile("shapes.yaml", load_shapes)
TABLE = 'of the form schema.name, with double quotes where PostgreSQL needs them: "My Schema".name'


def with_users(*lines: str) -> str:
    """A file with one shape, `users`; the given lines start at line 4."""
    return "\n".join(["shapes:", "  - id: users", "    table: public.users", *(f"    {line}" for line in lines)]) + "\n"


def test_a_file_says_how_many_shapes_it_may_remove(tmp_path: Path) -> None:
    """By default, no more than half."""
    path = tmp_path / "shapes.yaml"
    for line, expected in (("", 0), ("allow_removing: 12\n", 12)):
        path.write_text(line + with_users())
        assert read_shapes_file(path).allow_removing == expected
    assert FILE.refusal(tmp_path, "allow_removing: all\n" + with_users()) == (
        "shapes.yaml line 1: allow_removing is 'all', not a whole number"
    )


def test_every_key_of_a_shape_is_read(tmp_path: Path) -> None:
    """No key has its default value here."""
    text = """\
shapes:
  - id: all-users
    table: public.users
  - id: users-eu
    table: App."Users"
    columns: [id, "line/no", region]
    where: region = 'eu'
    replica: full
    primary_key: [id, "line/no"]
    partitions: [app.users_p0, 'app."P1"']
    depends_on: [all-users]
    flush: {bytes: 65536, interval: "2 seconds", chunk_bytes: 1024}
    snapshot: false
"""
    everyone, europe = FILE.load(tmp_path, text)

    assert everyone == ShapeDefinition(id="all-users", table=("public", "users"))
    assert everyone.flush == FlushPolicy(None, None, None)
    assert europe == ShapeDefinition(
        id="users-eu",
        table=("app", "Users"),
        columns=("id", "line/no", "region"),
        where="region = 'eu'",
        replica="full",
        primary_key=("id", "line/no"),
        partitions=(("app", "users_p0"), ("app", "P1")),
        depends_on=("all-users",),
        flush=FlushPolicy(bytes=65536, interval_ms=2_000, chunk_bytes=1024),
        snapshot=False,
    )


def test_a_file_may_hold_no_shape(tmp_path: Path) -> None:
    """That is how the last one is removed."""
    assert FILE.load(tmp_path, "shapes: []\n") == ()


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("public.users", ("public", "users")),
        ("Public.USERS", ("public", "users")),
        ('"My.Schema"."t"', ("My.Schema", "t")),
        ('a."say ""hi"""', ("a", 'say "hi"')),
        ("größe.ÄB", ("größe", "Äb")),
    ],
)
def test_a_table_is_folded_as_postgresql_folds_it(text: str, table: tuple[str, str]) -> None:
    """Quotes keep a part as it is; otherwise ASCII letters, and no others, become lower case."""
    assert parse_table(text) == table


@pytest.mark.parametrize(
    "text", ["users", "a.b.c", "a.", ".b", "a. b", 'a."', 'a.""', "a.1b", "a.b-c", 'a."b"c', "a.b\n"]
)
def test_a_malformed_table_name_is_refused(text: str) -> None:
    """It must have one schema and one name; what PostgreSQL accepts only in quotes needs them here too."""
    with pytest.raises(ValueError, match=re.escape(TABLE)):
        parse_table(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("colums: [id]", "line 4: shape users: colums is not a known key; did you mean columns?"),
        ("columns: id", "line 4: shape users: columns is a string, not a list"),
        ("columns: [id, no]", "line 4: shape users: columns[1] is a boolean; put it in quotes if a string is meant"),
        ("columns: [id, id]", "line 4: shape users: columns lists 'id' twice"),
        ("primary_key: [id, id]", "line 4: shape users: primary_key lists 'id' twice"),
        ("snapshot: auto", "line 4: shape users: snapshot is 'auto', not true or false"),
        ("replica: some", "line 4: shape users: replica is 'some', not default or full"),
        ("flush: {byte: 1}", "line 4: shape users: flush.byte is not a known key; did you mean bytes?"),
        ("flush: {bytes: 0}", "line 4: shape users: flush.bytes is '0', not a number of at least 1"),
        ("flush: {interval: '5'}", "line 4: shape users: flush.interval is '5', not " + DURATION),
        ("where:", "line 4: shape users: where has no value; give it one or leave the key out"),
    ],
)
def test_a_malformed_shape_is_refused(tmp_path: Path, line: str, message: str) -> None:
    """The message has the shape, the file, the line and the key."""
    assert FILE.refusal(tmp_path, with_users(line)) == f"shapes.yaml {message}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("columns: []", "columns is an empty list; leave the key out for the default"),
        ("primary_key: []", "primary_key is an empty list; leave the key out for the default"),
        ("where: '  '", "where is blank; leave the key out to match every row"),
        ("{columns: [a], primary_key: [id]}", "primary_key names 'id', which is not in columns; add it there"),
        ("partitions: [PUBLIC.users]", "partitions names 'PUBLIC.users', which is the shape's own table"),
        ("partitions: [a.b, A.B]", "partitions names 'A.B', which is already listed"),
        ("partitions: [a]", "partitions has 'a', not " + TABLE),
        ("depends_on: [users]", "depends_on names the shape itself"),
        ("depends_on: [nobody]", "depends_on names 'nobody', which is not a defined shape"),
    ],
)
def test_a_shape_that_contradicts_itself_is_refused(tmp_path: Path, line: str, message: str) -> None:
    """The error is a ShapeError with the line of the key."""
    lines = line.strip("{}").replace("], ", "]\n").splitlines()
    place = f"shapes.yaml line {3 + len(lines)}: shape users: "
    assert FILE.refusal(tmp_path, with_users(*lines), ShapeError) == place + message


def test_a_malformed_table_name_is_refused_with_its_line(tmp_path: Path) -> None:
    """The message has the expected form."""
    assert FILE.refusal(tmp_path, "shapes:\n  - {id: a, table: users}\n") == (
        "shapes.yaml line 2: shape a: table is 'users', not " + TABLE
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{table: a.b}", "line 2: shapes[0].id is missing"),
        ("{id: '', table: a.b}", "line 2: shapes[0].id is empty"),
        ("{id: 742, table: a.b}", "line 2: shapes[0].id is a number; put it in quotes if a string is meant"),
        (
            r'{id: "a\nb", table: a.b}',
            "line 2: shapes[0].id contains a control character, such as a line break or a tab",
        ),
        (f"{{id: {'x' * 201}, table: a.b}}", "line 2: shapes[0].id has 201 characters; the limit is 200"),
        ("users", "line 2: shapes[0] is a string, not a mapping of keys to values"),
        ("{id: a}", "line 2: shape a: table is missing"),
    ],
)
def test_an_unusable_entry_or_id_is_refused(tmp_path: Path, entry: str, message: str) -> None:
    """Until a shape has a usable id, messages count it from 0."""
    assert FILE.refusal(tmp_path, f"shapes:\n  - {entry}\n") == f"shapes.yaml {message}"


def test_a_duplicate_id_is_refused(tmp_path: Path) -> None:
    """The message names both lines."""
    text = "shapes:\n  - {id: a, table: s.t}\n  - {id: b, table: s.t}\n  - {id: a, table: s.u}\n"
    assert FILE.refusal(tmp_path, text, ShapeError) == (
        "shapes.yaml line 4: shape a: duplicate id, first on line 2; each shape needs its own"
    )


def test_a_folder_has_the_shapes_of_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Each file has a list, or is one shape. They may depend on each other; the greatest allowance counts."""
    (tmp_path / "b.yaml").write_text("id: one\ntable: s.t\ndepends_on: [two]\n")
    two = "shapes:\n  - {id: two, table: s.t}\n  - {id: three, table: s.t}\n"
    (tmp_path / "a.yaml").write_text(f"allow_removing: 2\n{two}")
    (tmp_path / "B.yaml").write_text("shapes: []\nallow_removing: 1\n")
    (tmp_path / "c.yml").write_text("id: [")
    found = read_shapes_file(tmp_path)
    assert (found.ids, found.allow_removing, found.faults) == (("two", "three", "one"), 2, ())
    assert found.definitions[2].subject("depends_on") == f"{tmp_path}/b.yaml line 3: shape 'one'"
    assert [f"{place.file[-6:]} {place.line}" for place in found.places] == ["a.yaml 3", "a.yaml 4", "b.yaml 1"]


def test_an_error_in_a_folder_has_its_file_and_its_line(tmp_path: Path) -> None:
    """A duplicate has both places, whether or not they are in one file."""
    (tmp_path / "a.yaml").write_text("shapes:\n  - {id: x, table: s.t}\n  - {id: x, table: s.t}\n")
    (tmp_path / "b.yaml").write_text("# again\nid: x\ntable: s.t\n")
    (tmp_path / "c.yaml").write_text("id: y\ntable: t\n")
    (tmp_path / "d.yaml").write_text("id: z\ntabel: s.t\n")
    (tmp_path / "e.yaml").write_text("id: ''\ntable: s.t\n")
    found = [str(fault.error).replace(f"{tmp_path}/", "") for fault in read_shapes_file(tmp_path).faults]
    assert found == [
        "e.yaml line 1: id is empty",
        "a.yaml line 3: shape x: duplicate id, first on line 2; each shape needs its own",
        "b.yaml line 2: shape x: duplicate id, first in a.yaml line 2; each shape needs its own",
        f"c.yaml line 2: shape y: table is 't', not {TABLE}",
        "d.yaml line 2: shape z: tabel is not a known key; did you mean table?",
    ]
    (tmp_path / "f.yaml").write_text("id: x\n  table: [\n")
    with pytest.raises(ConfigError, match=r"f\.yaml line 2: not YAML"):
        read_shapes_file(tmp_path)


def test_shapes_that_depend_on_each_other_in_a_cycle_are_refused(tmp_path: Path) -> None:
    """The message has the whole cycle, without the shapes that only lead to it."""
    text = """\
shapes:
  - {id: a, table: s.t, depends_on: [free, b]}
  - {id: b, table: s.t, depends_on: [c]}
  - {id: c, table: s.t, depends_on: [free, d]}
  - {id: d, table: s.t, depends_on: [b]}
  - {id: free, table: s.t}
"""
    assert FILE.refusal(tmp_path, text, ShapeError) == (
        "shapes.yaml line 3: shape b: depends_on has a cycle: b → c → d → b"
    )


def test_a_long_chain_and_a_diamond_are_no_cycle(tmp_path: Path) -> None:
    """Each shape of the chain depends on the next two, so many paths lead to the last."""
    last = 2_000
    entries = [
        f"  - {{id: s{i}, table: s.t, depends_on: [{', '.join(f's{j}' for j in range(i + 1, min(i + 3, last)))}]}}"
        for i in range(last)
    ]
    assert len(FILE.load(tmp_path, "shapes:\n" + "\n".join(entries) + "\n")) == last


def test_a_secret_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with a variable's value, messages show the variable's name."""
    monkeypatch.setenv("KEY", "hunter2")
    for line, message in (
        ("depends_on: ['${KEY}']", "shape users: depends_on names '${KEY}', which is not a defined shape"),
        ("replica: '${KEY}'", "shape users: replica is '${KEY}', not default or full"),
    ):
        with pytest.raises(ConfigError) as caught:
            FILE.load(tmp_path, with_users(line))
        assert message in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        FILE.load(tmp_path, "shapes:\n  - {id: '${KEY}', table: '${KEY}'}\n")
    assert "shape ${KEY}: table is '${KEY}', not of the form" in str(caught.value)
    assert caught.value.__cause__ is None
