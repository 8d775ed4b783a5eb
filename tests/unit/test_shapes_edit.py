"""The commands that edit the shapes file: exactly the wanted shape changes, or nothing does."""

import fcntl
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml

from flushtracker.capture.shape_registry import ShapeRegistry
from flushtracker.cli import main
from flushtracker.errors import ConfigError, FlushtrackerError, PostgresUnavailableError, ShapeError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.operate.shapes.shapes_edit import edited
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import read_shapes
from flushtracker.wal.log_offset import LogOffset
from tests.support.fake_world import CONFIG

ROOT = Path(__file__).parents[2]
SHAPES = """\
# Mine.
shapes:
  - id: users     # all of them
    table: public.users
  - id: orders
    table: public.orders
    depends_on: [users]

  # the big one
  - id: events
    table: public.events
"""
ALIASES = "&a0 [x, x], " + ", ".join(f"&a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12))


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.yaml"
    path.write_text(SHAPES)
    return path


class Registry:
    """The registry's live shapes, of one server unless said otherwise, and an id that was removed."""

    live_ids: tuple[frozenset[str], ...] = ()

    def __init__(self, *_: object) -> None:
        """As capture has it while it does not run."""

    def entry(self, shape_id: str) -> ShapeEntry | None:
        removed = ShapeEntry("7/1/s", ShapeDefinition("gone", ("public", "gone")), 1, LogOffset(1, 0), LogOffset(2, 0))
        return removed if shape_id == "gone" else None


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> type[Registry]:
    """Has no live shapes, unless a test gives it some."""
    monkeypatch.setattr(Registry, "live_ids", ())
    monkeypatch.setattr("flushtracker.operate.shapes.add_program.RegistryLook", Registry)
    monkeypatch.setattr("flushtracker.operate.shapes.add_program.catalog_errors", lambda *_: [])
    monkeypatch.setattr("flushtracker.operate.shapes.remove_program.RegistryLook", Registry)
    return Registry


def run(shapes: Path, *arguments: str) -> int:
    """The command, which does not wait for capture."""
    config = shapes.parent / "capture.yaml"
    config.write_text(yaml.safe_dump(CONFIG | {"shapes": str(shapes), "acks": "acks"}))
    return main([*arguments, "--no-wait", "--config", str(config)])


def remove(shapes: Path, *arguments: str) -> int:
    return run(shapes, "remove-shape", *arguments, "--yes")


def test_a_shape_is_taken_out_and_all_else_stays(shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Byte for byte, with its comments."""
    assert remove(shapes, "orders") == 0
    assert capsys.readouterr().out == f"removed shape orders from {shapes}\n"
    removed = "  - id: orders\n    table: public.orders\n    depends_on: [users]\n"
    assert shapes.read_text() == SHAPES.replace(removed, "")


def test_every_shape_of_the_example_can_be_taken_out_and_put_back(tmp_path: Path) -> None:
    """``conf/shapes.yaml`` has comments of every kind."""
    text = (ROOT / "conf" / "shapes.yaml").read_text()
    path = tmp_path / "shapes.yaml"
    path.write_text(text)
    definitions = read_shapes(path).definitions
    for index, shape in enumerate(definitions):
        path.write_text(text)
        if shape.id == "orders-original":
            # Another one depends on it.
            assert remove(path, shape.id) == 2
            assert path.read_text() == text
            continue
        assert remove(path, shape.id) == 0
        assert read_shapes(path).definitions == (*definitions[:index], *definitions[index + 1 :])
        assert set(path.read_text().splitlines()) <= set(text.splitlines())
    path.write_text("shapes: []\n")
    assert run(path, "add-shape", str(ROOT / "conf" / "shapes.yaml")) == 0
    assert read_shapes(path).definitions == definitions


def test_shapes_are_put_behind_the_others(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file or from stdin; they may depend on shapes that are there."""
    monkeypatch.setattr("sys.stdin", io.StringIO("- id: late\n  table: public.late  # new\n  depends_on: [users]\n"))
    assert run(shapes, "add-shape", "-") == 0
    assert capsys.readouterr().out == f"added shape late to {shapes}\n"
    assert shapes.read_text() == (SHAPES + "  - id: late\n    table: public.late  # new\n    depends_on: [users]\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["remove-shape", "order"], "has no shape 'order'; did you mean orders?"),
        (["remove-shape", "zzz"], "has no shape 'zzz'\n"),
        (["remove-shape", "users"], "depends_on names 'users', which is not a shape in this file"),
        (["add-shape", "id: users\ntable: public.u"], "duplicate id, first on line 3"),
        (["add-shape", "id: a\ntable: public.u\nwher: x"], "wher is not a known key; did you mean where or writer?"),
        (["add-shape", "id: a\ntable: u"], "shape a: table is 'u', not of the form schema.name"),
        (["add-shape", "shapes: []"], "has no shapes"),
        (["add-shape", "id: gone\ntable: public.gone"], "shape 'gone' was removed or ended at"),
        (["add-shape", "{"], "not YAML"),
        (["add-shape", "shapes: [*a]"], "not YAML"),
        (["add-shape", "id: a\ntable: public.u\ncolumns: &x\n- *x"], "new.yaml line 4: *x is an alias; write out what"),
        (["add-shape", "id: a\ntable: public.u\ncolumns: &x [*x]"], "new.yaml line 3: *x is an alias; write out what"),
        (["add-shape", "x: &x {id: a}\nshapes:\n- *x"], "new.yaml line 3: *x is an alias"),
        (["add-shape", f"id: a\ntable: public.u\ncolumns: [{ALIASES}]"], "is an alias; write out what it stands for"),
    ],
)
def test_what_is_refused_changes_nothing(
    shapes: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the user's file, not the one that was tried."""
    new = shapes.parent / "new.yaml"
    new.write_text(arguments[1])
    command = [arguments[0], str(new)] if arguments[0] == "add-shape" else [*arguments, "--yes"]
    assert run(shapes, *command) == 2
    error = capsys.readouterr().err
    assert message in error
    assert ".new" not in error
    assert shapes.read_text() == SHAPES
    assert sorted(path.name for path in shapes.parent.iterdir()) == ["capture.yaml", "new.yaml", "shapes.yaml"]


def test_a_removal_is_confirmed_at_a_terminal_or_with_yes(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that forgets --yes is told so; a person who does not say yes has said no."""
    assert run(shapes, "remove-shape", "orders") == 2
    assert "removing a shape is final; without a terminal, confirm it with --yes" in capsys.readouterr().err

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer, code in (("\n", 1), ("no\n", 1), ("y\n", 0)):
        assert "orders" in shapes.read_text()
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        assert run(shapes, "remove-shape", "orders") == code
        assert "is final: its id is never used again" in capsys.readouterr().out
    assert "orders" not in shapes.read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# mine\nshapes:\n  - id: users\n    table: t.t\n# end\n", "# mine\nallow_removing: 1\nshapes: []\n# end\n"),
        ("shapes:\n- id: users\n  table: t.t", "allow_removing: 1\nshapes: []\n"),
        ("---\nshapes:\n- id: users\n  table: t.t\n...\n", "---\nallow_removing: 1\nshapes: []\n...\n"),
        (
            "shapes:\n- id: users\n  table: t.t\nallow_removing: 0 # no\n",
            "shapes: []\nallow_removing: 1 # no\n",
        ),
        ("  shapes:\r\n  - id: users\r\n    table: t.t\r\n", "allow_removing: 1\r\nshapes: []\r\n"),
        ("allow_removing: 3\nshapes:\n- id: users\n  table: t.t\n", "allow_removing: 3\nshapes: []\n"),
    ],
)
def test_the_last_shape_goes_with_a_line_that_allows_it(
    shapes: Path, registry: type[Registry], before: str, after: str
) -> None:
    """Otherwise capture would assume that the file was emptied by accident. The line is above the list."""
    registry.live_ids = (frozenset({"users"}),)
    shapes.write_bytes(before.encode())
    assert remove(shapes, "users") == 0
    assert shapes.read_bytes() == after.encode()


def test_removals_that_capture_has_not_taken_yet_count(
    shapes: Path, registry: type[Registry], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of three shapes were removed while capture was down, and it did not start with what was left."""
    registry.live_ids = (frozenset({"users", "orders", "events"}),)
    live = ShapeRegistry(
        ShapeEntry("7/1/s", definition, 1, LogOffset(1, 0)) for definition in read_shapes(shapes).definitions
    )
    for shape_id, allowed in (("orders", 0), ("users", 2), ("events", 3)):
        assert remove(shapes, shape_id) == 0
        content = read_shapes(shapes)
        assert content.allow_removing == allowed
        assert shape_id in live.compare(content.definitions, content.allow_removing).removed
    out = capsys.readouterr().out
    assert out.count("allow_removing") == 2
    assert (
        "without orders, users the file lacks more than half of the live shapes, so it has 'allow_removing: 2'" in out
    )
    assert shapes.read_text() == "# Mine.\nallow_removing: 3\nshapes: []\n\n  # the big one\n"


def test_a_file_that_was_cut_off_is_not_made_good_by_a_removal(
    shapes: Path, registry: type[Registry], capsys: pytest.CaptureFixture[str]
) -> None:
    """The shapes that nobody has removed would go with the one that is."""
    registry.live_ids = (frozenset({"users"}), frozenset({"users", "a", "b", "c"}))
    assert remove(shapes, "orders") == 2
    assert "lacks more than half of the live shapes already, so capture refuses it: a, b, c." in capsys.readouterr().err
    assert shapes.read_text() == SHAPES


def test_a_link_and_the_rights_of_its_file_stay(shapes: Path) -> None:
    """The file that capture reads is often a link, and not everybody's."""
    shapes.chmod(0o640)
    link = shapes.parent / "link.yaml"
    link.symlink_to(shapes.name)
    assert remove(link, "orders") == 0
    assert link.is_symlink()
    assert shapes.stat().st_mode & 0o777 == 0o640
    assert "orders" not in shapes.read_text()


def test_an_editor_that_saves_meanwhile_wins(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors take no lock. Their content must not be overwritten by what was read before it."""
    real = read_shapes

    def save_and_read(path: Path, name: str = "") -> object:
        if path.name.endswith(".new"):
            shapes.write_text(SHAPES + "# edited\n")
        return real(path, name)

    monkeypatch.setattr("flushtracker.operate.shapes.shapes_edit.read_shapes", save_and_read)
    assert remove(shapes, "orders") == 2
    assert shapes.read_text() == SHAPES + "# edited\n"


def test_a_second_command_waits_for_the_first_and_edits_what_that_has_left(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file that it has waited for is not the one that is there afterwards."""
    pauses = []

    def go_on(_: float) -> None:
        pauses.append(1)
        if len(pauses) == 3:
            new = shapes.parent / "other"
            new.write_text(SHAPES + "# by the first\n")
            new.rename(shapes)
            fcntl.flock(first, fcntl.LOCK_UN)

    monkeypatch.setattr("time.sleep", go_on)
    with shapes.open("rb") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        assert remove(shapes, "orders") == 0
    assert "# by the first" in shapes.read_text()
    assert "orders" not in shapes.read_text()
    assert len(pauses) >= 3
    monkeypatch.setattr("flushtracker.operate.shapes.shapes_edit._LOCK_TIMEOUT_S", 0.01)
    with shapes.open("rb") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        assert remove(shapes, "events") == 2
    assert "is locked by another process; nothing was changed" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["fsync", "fchmod"])
def test_a_full_or_failing_disk_leaves_the_file_as_it_was(
    shapes: Path, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no remains beside it."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    assert remove(shapes, "orders") == 2
    assert "cannot be changed: No space left on device; nothing was changed" in capsys.readouterr().err
    assert shapes.read_text() == SHAPES
    assert len(list(shapes.parent.iterdir())) == 2


def test_an_edit_that_would_change_more_is_refused(shapes: Path) -> None:
    """Whatever the text is, its meaning decides."""
    refuse: Callable[[object], None] = lambda _: pytest.fail("read although it is no file of shapes")  # noqa: E731
    with pytest.raises(ConfigError, match="as it would be, line 1: other is not a known key"), edited(shapes) as file:
        file.replace("other: 1\n", refuse)


@pytest.mark.parametrize("command", ["add-shape", "remove-shape"])
def test_a_file_that_cannot_be_kept_is_not_edited(
    shapes: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message has the comment that would be lost."""
    text = SHAPES.replace("[users]", "[  # why\n      users]")
    shapes.write_text(text)
    new = shapes.parent / "new.yaml"
    new.write_text("id: late\ntable: public.late")
    assert run(shapes, *([command, str(new)] if command == "add-shape" else [command, "events", "--yes"])) == 2
    assert f"{shapes}: the comment '# why' cannot be kept; edit the file by hand" in capsys.readouterr().err
    assert shapes.read_text() == text


BAD: Final = """\
shapes:
  - id: users
    table: public.users
  - id: bad
    tabel: public.orders
  - id: orders
    table: public.orders
  - id: twice   # the first
    table: public.users
  - id: twice   # the second
    table: public.orders
"""


@pytest.mark.parametrize(
    ("shape_id", "left"),
    [
        ("orders", ["users", "bad", "twice", "twice"]),
        ("bad", ["users", "orders", "twice", "twice"]),
        ("twice", ["users", "bad", "orders"]),
    ],
)
def test_what_is_wrong_with_some_entries_prevents_no_edit(shapes: Path, shape_id: str, left: list[str]) -> None:
    """The removal of any shape, a wrong one and one that is there twice among them; and an addition."""
    shapes.write_text(BAD)
    assert remove(shapes, shape_id) == 0
    assert list(read_shapes(shapes).ids) == left
    new = shapes.parent / "new.yaml"
    new.write_text("id: late\ntable: public.late\n")
    assert run(shapes, "add-shape", str(new)) == 0
    assert list(read_shapes(shapes).ids) == [*left, "late"]


def test_a_shape_is_not_added_under_the_id_of_a_wrong_entry(shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then neither of them would be taken."""
    shapes.write_text(BAD)
    new = shapes.parent / "new.yaml"
    new.write_text("id: bad\ntable: public.late\n")
    assert run(shapes, "add-shape", str(new)) == 2
    assert "shape bad: duplicate id, first on line 4" in capsys.readouterr().err
    assert shapes.read_text() == BAD


def test_nothing_is_removed_while_an_id_cannot_be_read(shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Capture would not remove it, and the command would wait for nothing."""
    text = f"{BAD}  - table: public.users\n"
    shapes.write_text(text)
    assert remove(shapes, "orders") == 2
    assert "line 12: shapes[5].id is missing. Correct this entry first" in capsys.readouterr().err
    assert shapes.read_text() == text


def test_what_the_catalog_does_not_allow_is_not_written(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All reasons are shown. Without a server nothing is written either, unless it is not to be asked."""

    def refuse(*_: object) -> list[FlushtrackerError]:
        return [ShapeError("no table a"), ShapeError("no column b")]

    def fail(*_: object) -> list[FlushtrackerError]:
        raise PostgresUnavailableError("no server")

    new = shapes.parent / "new.yaml"
    new.write_text("id: late\ntable: public.late\n")
    for check, exit_code, message in ((refuse, 2, "no table a; no column b"), (fail, 7, "no server")):
        monkeypatch.setattr("flushtracker.operate.shapes.add_program.catalog_errors", check)
        assert run(shapes, "add-shape", str(new)) == exit_code
        assert message in capsys.readouterr().err
        assert shapes.read_text() == SHAPES
    assert run(shapes, "add-shape", str(new), "--offline") == 0
    assert read_shapes(shapes).ids[-1] == "late"
