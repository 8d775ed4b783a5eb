"""The commands that edit the shapes: exactly one file is written, as a whole, or nothing changes."""

import fcntl
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.capture.shapes.shape_registry import ShapeRegistry
from flushtracker.cli import main
from flushtracker.config.yaml_tree import read_files
from flushtracker.errors import FlushtrackerError, PostgresUnavailableError, ShapeError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.operate.shapes.add_program import file_name
from flushtracker.operate.shapes.shapes_edit import ShapesEdit
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import read_shapes_file
from flushtracker.wal.log_offset import LogOffset
from tests.support.config_file import write_config
from tests.support.fake_world import CONFIG

ROOT = Path(__file__).parents[3]
FILES: Final = {
    "events.yaml": "# the big one\nshapes:\n  - id: events\n    table: public.events\n",
    "orders.yaml": "id: orders   # all of them\ntable: public.orders\ndepends_on: [users]\n",
    "users.yaml": "id: users\ntable: public.users\n",
}
LATE: Final = "# new\nid: late\ntable: public.late   # since today\ndepends_on: [users]\n"
ALIASES = "&a0 [x, x], " + ", ".join(f"&a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12))

_FORK_SERVER: Final = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload([__name__])


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.d"
    path.mkdir()
    for name, text in FILES.items():
        (path / name).write_text(text)
    return path


def texts(shapes: Path) -> dict[str, str]:
    """All that is in the folder, hidden files, too."""
    return {path.name: path.read_text() for path in sorted(shapes.iterdir())}


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
    replace_registry(monkeypatch)
    return Registry


def replace_registry(patch: pytest.MonkeyPatch) -> None:
    """For both commands."""
    patch.setattr("flushtracker.operate.shapes.add_program.RegistryReader", Registry)
    patch.setattr("flushtracker.operate.shapes.add_program.catalog_errors", lambda *_: [])
    patch.setattr("flushtracker.operate.shapes.remove_program.RegistryReader", Registry)


def run(shapes: Path, *arguments: str) -> int:
    """The command, which does not wait for capture."""
    config = shapes.parent / "capture.yaml"
    if not config.exists():
        write_config(config, {**CONFIG, "shapes": str(shapes)})
    command, *more = arguments
    return main([command, "--no-wait", "--config", str(config), *more])


def remove(shapes: Path, *arguments: str) -> int:
    return run(shapes, "remove-shape", "--yes", *arguments)


def add(shapes: Path, text: str, *arguments: str) -> int:
    new = shapes.parent / "new.yaml"
    new.write_text(text)
    return run(shapes, "add-shape", str(new), *arguments)


def test_a_shape_goes_with_its_file_and_all_else_stays(shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Byte for byte; the file has any name, and the shape alone."""
    (shapes / "orders.yaml").rename(shapes / "10.yaml")
    assert remove(shapes, "orders") == 0
    assert capsys.readouterr().out == f"removed shape orders from {shapes}\n"
    assert texts(shapes) == {name: text for name, text in FILES.items() if name != "orders.yaml"}


def test_a_shape_gets_a_file_of_its_own_as_it_was_given(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file or from stdin, comments and all, as a list or alone; it may depend on shapes that are there."""
    assert add(shapes, LATE) == 0
    assert capsys.readouterr().out == f"added shape late as {shapes}/late.yaml\n"
    listed = "shapes:   # of one\n  - id: a/b\n    table: public.late\n    columns: &x [id]\n    primary_key: *x\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(listed))
    assert run(shapes, "add-shape", "-") == 0
    assert texts(shapes) == FILES | {"late.yaml": LATE, "a%2Fb.yaml": listed}
    assert read_shapes_file(shapes).all_right()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["remove-shape", "order"], "has no shape 'order'; did you mean orders?"),
        (["remove-shape", "zzz"], "has no shape 'zzz'\n"),
        (
            ["remove-shape", "users"],
            "orders.yaml line 3: shape orders: depends_on names 'users', which is not a defined",
        ),
        (["add-shape", "id: users\ntable: public.u"], "shape users: duplicate id, first in {shapes}/users.yaml line 1"),
        (["add-shape", "id: a\ntable: public.u\nwher: x"], "new.yaml line 3: shape a: wher is not a known key"),
        (["add-shape", "id: a\ntable: u"], "new.yaml line 2: shape a: table is 'u', not of the form schema.name"),
        (["add-shape", "id: 7\ntable: a.b"], "new.yaml line 1: id is a number"),
        (["add-shape", "shapes: []"], "new.yaml has 0 shapes, and add-shape adds one"),
        (["add-shape", "shapes: [{id: a, table: a.b}, {id: b, table: a.b}]"], "has 2 shapes, and add-shape adds one"),
        (["add-shape", "- id: a\n  table: public.u"], "new.yaml line 1: expected a mapping of keys to values"),
        (["add-shape", "allow_removing: 9\nshapes: [{id: a, table: a.b}]"], "new.yaml has allow_removing"),
        (["add-shape", "id: gone\ntable: public.gone"], "shape 'gone' was removed or ended at"),
        (["add-shape", "id: a\ntable: a.b\ndepends_on: [c]"], "depends_on names 'c', which is not a defined shape"),
        (["add-shape", "{"], "new.yaml line 1: not YAML"),
        (
            ["add-shape", f"id: a\ntable: public.u\ncolumns: [{ALIASES}]"],
            "new.yaml line 3: shape a: columns[0] is a list",
        ),
        (["add-shape", ""], "new.yaml is empty"),
    ],
)
def test_what_is_refused_changes_nothing(
    shapes: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the user's file."""
    command, argument = arguments
    assert (add(shapes, argument) if command == "add-shape" else remove(shapes, argument)) == 2
    assert message.replace("{shapes}", str(shapes)) in capsys.readouterr().err
    assert texts(shapes) == FILES


def test_a_file_becomes_a_folder_by_the_commands_of_the_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shape is added only where it gets a file of its own. The folder means what the file has meant."""
    path = tmp_path / "my shapes.yaml"
    path.write_text("shapes:\n  - id: users\n    table: public.users\n  - {id: more, table: public.users}\n")
    before = read_shapes_file(path).definitions
    assert add(path, LATE) == 2
    message = capsys.readouterr().err
    commands, setting = message.partition("To make one: ")[2].split("; then set '")
    subprocess.run(commands, shell=True, check=True)  # noqa: S602  as a person does
    shapes = Path(setting.partition("'")[0].removeprefix("shapes: "))
    (tmp_path / "capture.yaml").unlink()
    assert add(shapes, LATE) == 0
    assert read_shapes_file(shapes).ids == ("late", "users", "more")
    assert read_shapes_file(shapes).definitions[1:] == before


def test_a_folder_or_a_file_that_is_not_there_is_named(shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As is one that is there already, under the name that the shape's file would have or under another one."""
    assert run(shapes, "add-shape", str(shapes)) == 2
    assert f"{shapes} is a folder; name the file of a shape" in capsys.readouterr().err
    assert run(shapes, "add-shape", str(shapes / "users.yaml")) == 2
    assert f"{shapes}/users.yaml is in {shapes} already, and capture reads it there" in capsys.readouterr().err
    (shapes / "late.yaml").write_text("id: other\ntable: public.late\n")
    assert add(shapes, LATE) == 2
    assert f"{shapes}/late.yaml is there already, with other shapes; rename it" in capsys.readouterr().err
    assert "other" in texts(shapes)["late.yaml"]
    assert run(shapes, "add-shape", str(shapes / "none")) == 2
    assert f"{shapes}/none cannot be read: No such file or directory" in capsys.readouterr().err
    shapes.rename(shapes.with_name("moved"))
    assert add(shapes, LATE) == 2
    assert f"{shapes} cannot be read: No such file or directory" in capsys.readouterr().err


@given(st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=200))
def test_the_file_of_any_id_is_read_and_is_in_the_folder(shape_id: str) -> None:
    """Whatever the id is, it leads to no other folder, and a shell needs no quotes."""
    name = file_name(shape_id)
    assert Path("/d", name).resolve() == Path("/d") / name
    assert name.isascii()
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~%+")
    assert not name.startswith(".")
    assert len(name.encode()) <= 205


def test_no_two_ids_have_one_file() -> None:
    """Not even long ones that begin alike, or one that looks like the name of another."""
    ids = [
        "a/b",
        "a%2Fb",
        "a%252Fb",
        ".",
        "..",
        "%2E",
        "../a",
        "%2E./a",
        "a b",
        "a+b",
        "é",
        "e\u0301",
        "CON",
        "con",
        "-a",
    ]
    long = [end * 150 + begin for end in ("é", "a", "/", "😀") for begin in ("", "x", "y", "x" * 50)]
    truncated = [file_name(each).removesuffix(".yaml") for each in long]
    assert len({file_name(each) for each in (*ids, *long, *truncated)}) == len({*ids, *long, *truncated})


@pytest.mark.parametrize("shape_id", ["..", "../up", "/etc/x", "'\"$(touch x)", ".hidden", "-", "é" * 200, "a\\b", "~"])
def test_a_shape_of_any_id_is_added_and_removed_again(shapes: Path, shape_id: str) -> None:
    """Its file is a visible one of the folder, and nothing else has changed."""
    assert add(shapes, yaml.safe_dump({"id": shape_id, "table": "public.late"}, allow_unicode=True)) == 0
    assert {*read_shapes_file(shapes).ids} == {"events", "orders", "users", shape_id}
    assert texts(shapes).keys() == {*FILES, file_name(shape_id)}
    assert sorted(path.name for path in shapes.parent.iterdir()) == ["capture.yaml", "new.yaml", "shapes.d"]
    assert remove(shapes, "--", shape_id) == 0
    assert texts(shapes) == FILES


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("more.yaml", "shapes:\n  - {id: a, table: s.t}\n  - {id: x, table: s.t}\n", "{}/more.yaml line 3"),
        (
            "more.yaml",
            "shapes:\n  - {id: x, table: s.t}\n  - {id: x, table: s.t}\n",
            "{0}/more.yaml line 2 and {0}/more",
        ),
        ("more.yaml", "id: users\ntable: s.t\n", "{0}/more.yaml line 1 and {0}/users.yaml line 1"),
    ],
)
def test_a_shape_without_a_file_of_its_own_is_left_to_an_editor(
    shapes: Path, name: str, text: str, places: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or one that is there twice, of which it is not known which one is meant. The message has the places."""
    (shapes / name).write_text(text)
    before = texts(shapes)
    assert remove(shapes, "users" if "users" in text else "x") == 2
    assert f"has no file of its own: it is in {places.format(shapes)}" in capsys.readouterr().err
    assert texts(shapes) == before


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
        assert "orders.yaml" in texts(shapes)
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        assert run(shapes, "remove-shape", "orders") == code
        assert "is final: its id is never used again" in capsys.readouterr().out
    assert "orders.yaml" not in texts(shapes)


@pytest.mark.parametrize(("live", "after"), [([], "shapes: []\n"), (["users"], "allow_removing: 1\nshapes: []\n")])
def test_the_only_shape_of_a_file_is_removed_and_the_file_stays(
    tmp_path: Path, registry: type[Registry], live: list[str], after: str
) -> None:
    """Capture's configuration names it."""
    registry.live_ids = (frozenset(live),)
    path = tmp_path / "shapes.yaml"
    path.write_text("# mine\nshapes:\n  - id: users\n    table: t.t\n")
    assert remove(path, "users") == 0
    assert path.read_text() == after


def test_removals_that_capture_has_not_taken_yet_count(
    shapes: Path, registry: type[Registry], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of three shapes were removed while capture was down, and it did not start with what was left.

    The allowance is in the removed shape's file, so both are one write.
    """
    registry.live_ids = (frozenset({"users", "orders", "events"}),)
    live = ShapeRegistry(
        ShapeEntry("7/1/s", definition, 1, LogOffset(1, 0)) for definition in read_shapes_file(shapes).definitions
    )
    for shape_id, allowed in (("orders", 0), ("users", 2), ("events", 3)):
        assert remove(shapes, shape_id) == 0
        content = read_shapes_file(shapes)
        assert content.allow_removing == allowed
        assert shape_id in live.compare(content.definitions, content.allow_removing).removed
    out = capsys.readouterr().out
    assert out.count("allow_removing") == 2
    assert (
        f"without orders, users more than half of the live shapes are missing, so {shapes}/users.yaml now has "
        "'allow_removing: 2' in place of the shape; take that out afterwards" in out
    )
    assert texts(shapes) == {
        "events.yaml": "allow_removing: 3\nshapes: []\n",
        "users.yaml": "allow_removing: 2\nshapes: []\n",
    }


def test_a_folder_that_lacks_files_is_not_made_good_by_a_removal(
    shapes: Path, registry: type[Registry], capsys: pytest.CaptureFixture[str]
) -> None:
    """The shapes that nobody has removed would go with the one that is."""
    registry.live_ids = (frozenset({"users"}), frozenset({"users", "a", "b", "c"}))
    assert remove(shapes, "orders") == 2
    assert "lacks more than half of the live shapes already, so capture refuses it: a, b, c." in capsys.readouterr().err
    assert texts(shapes) == FILES


def test_links_and_rights_stay_and_a_new_file_has_those_of_the_folder(shapes: Path, registry: type[Registry]) -> None:
    """The folder and a file in it may be links, and not everybody's."""
    shapes.chmod(0o2770)
    link = shapes.parent / "link.d"
    link.symlink_to(shapes.name)
    assert add(link, LATE) == 0
    assert (shapes / "late.yaml").stat().st_mode & 0o7777 == 0o660
    elsewhere = shapes.parent / "elsewhere"
    (shapes / "users.yaml").rename(elsewhere)
    (shapes / "users.yaml").symlink_to(elsewhere)
    elsewhere.chmod(0o640)
    for name in ("late", "orders"):
        assert remove(link, name) == 0
    registry.live_ids = (frozenset({"users"}),)
    assert remove(link, "users") == 0
    assert (shapes / "users.yaml").is_symlink()
    assert elsewhere.read_text() == "allow_removing: 1\nshapes: []\n"
    assert elsewhere.stat().st_mode & 0o7777 == 0o640


@pytest.mark.parametrize("command", ["add", "remove", "replace"])
def test_an_editor_that_saves_meanwhile_wins(
    shapes: Path, registry: type[Registry], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Editors take no lock. Their content must not be overwritten by what was read before it."""
    if command == "replace":
        registry.live_ids = (frozenset({"orders"}),)
    name = "late.yaml" if command == "add" else "orders.yaml"
    require = ShapesEdit._require_unchanged

    def save(self: ShapesEdit, file: Path) -> None:
        (shapes / name).write_text("# edited\n")
        require(self, file)

    monkeypatch.setattr(ShapesEdit, "_require_unchanged", save)
    assert (add(shapes, LATE) if command == "add" else remove(shapes, "orders")) == 2
    assert texts(shapes) == FILES | {name: "# edited\n"}


def test_a_command_waits_for_another_one_and_then_gives_up(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It edits what the other one has left."""
    pauses = []
    sleep, own_thread = time.sleep, threading.current_thread()

    def go_on(seconds: float) -> None:
        if threading.current_thread() is not own_thread:
            sleep(seconds)
            return
        pauses.append(1)
        if len(pauses) == 3:
            (shapes / "events.yaml").rename(shapes / "by the other.yaml")
            fcntl.flock(other, fcntl.LOCK_UN)

    monkeypatch.setattr("time.sleep", go_on)
    other = os.open(shapes, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert remove(shapes, "events") == 0
    assert texts(shapes).keys() == {"orders.yaml", "users.yaml"}
    assert len(pauses) == 3
    monkeypatch.setattr("flushtracker.operate.shapes.shapes_edit._LOCK_TIMEOUT_S", 0.01)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert remove(shapes, "orders") == 2
    assert f"{shapes} is locked by another process; nothing was changed" in capsys.readouterr().err
    os.close(other)


def child(live_ids: tuple[frozenset[str], ...], kill_at: int, command: Callable[..., int], *arguments: object) -> None:
    """In a process of its own: with such a registry, run a command; SIGKILL ends it at a step, unless that is 0."""
    with pytest.MonkeyPatch.context() as patch:
        replace_registry(patch)
        Registry.live_ids = live_ids
        if kill_at:
            die_at(kill_at, Path(str(arguments[0])))
        sys.exit(command(*arguments))


def started(command: Callable[..., int], *arguments: object, kill_at: int = 0) -> ForkServerProcess:
    """Start a command as a child of a process without threads: this one may have those of other tests' libraries."""
    process = _FORK_SERVER.Process(target=child, args=(Registry.live_ids, kill_at, command, *arguments))
    process.start()
    return process


def ended(process: ForkServerProcess) -> int | None:
    """The exit code, negative for a signal."""
    process.join()
    return process.exitcode


def test_of_commands_at_once_none_undoes_another(shapes: Path, registry: type[Registry]) -> None:
    """Each removes or adds its own shape, and sees what the others have removed: the last one needs an allowance."""
    many = [f"s{number}" for number in range(6)]
    for shape_id in many:
        (shapes / f"{shape_id}.yaml").write_text(f"id: {shape_id}\ntable: public.t\n")
        (shapes.parent / f"n{shape_id}.yaml").write_text(f"id: n{shape_id}\ntable: public.t\n")
    registry.live_ids = (frozenset(many),)
    assert run(shapes, "remove-shape", "orders", "--yes") == 0
    children = [started(remove, shapes, each) for each in many]
    children += [started(run, shapes, "add-shape", str(shapes.parent / f"n{each}.yaml")) for each in (*many, "s0")]
    codes = Counter(map(ended, children))
    assert codes == {0: 12, 2: 1}
    found = read_shapes_file(shapes)
    assert {*found.ids} == {"users", "events", *(f"n{each}" for each in many)}
    assert (found.allow_removing, found.faults) == (6, ())


_OPERATIONS: Final = {"open", "os.rename", "os.remove", "os.chmod", "os.chown", "os.listdir", "os.scandir", "fsync"}


def die_at(step: int, folder: Path) -> None:
    """SIGKILL ends this process before its n-th operation on files in ``folder``; each sync counts twice."""
    left = step
    fsync = os.fsync

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in _OPERATIONS and str(folder) in str(arguments[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def counted(descriptor: int) -> None:
        count("fsync", (folder,))
        fsync(descriptor)
        count("fsync", (folder,))

    sys.addaudithook(count)
    vars(os)["fsync"] = counted


@pytest.mark.parametrize("command", ["add", "remove", "replace"])
def test_a_kill_at_any_step_leaves_all_or_nothing(shapes: Path, registry: type[Registry], command: str) -> None:
    """What capture reads is what was there, or what is wanted; the command can be repeated, and leaves no remains."""
    if command == "replace":
        registry.live_ids = (frozenset({"orders"}),)
    before = read_files(shapes)

    edit, what = (add, LATE) if command == "add" else (remove, "orders")
    outcomes, step = set(), 0
    while True:
        step += 1
        for path in shapes.iterdir():
            path.unlink()
        for path, content in before.items():
            path.write_bytes(content)

        code = ended(started(edit, shapes, what, kill_at=step))
        ids = frozenset(read_shapes_file(shapes).ids)
        assert read_shapes_file(shapes).faults == ()
        outcomes.add(ids)
        if code != -signal.SIGKILL:
            assert code == 0
            break
        is_done = ids != {"users", "orders", "events"}
        assert edit(shapes, what) == (2 if is_done else 0)
        assert not is_done or all(
            before[path] == read_files(shapes)[path] for path in before if "orders" not in path.name
        )
        assert is_done or not [path for path in shapes.iterdir() if path.name.startswith(".")]
    wanted = {"users", "orders", "events", "late"} if command == "add" else {"users", "events"}
    assert outcomes == {frozenset({"users", "orders", "events"}), frozenset(wanted)}
    assert step > (8 if command == "remove" else 12)


@pytest.mark.parametrize("step", ["fsync", "fchmod", "fchown"])
def test_a_full_or_failing_disk_leaves_the_folder_as_it_was(
    shapes: Path, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no remains in it."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    assert add(shapes, LATE) == 2
    assert "cannot be changed: No space left on device; nothing was changed" in capsys.readouterr().err
    assert texts(shapes) == FILES


def test_what_is_wrong_with_some_shapes_prevents_no_edit(shapes: Path) -> None:
    """The removal of any other shape or of a wrong one, and an addition, even of what a wrong one depends on."""
    (shapes / "bad.yaml").write_text("id: bad\ntabel: public.orders\n")
    (shapes / "early.yaml").write_text("id: early\ntable: public.orders\ndepends_on: [late]\n")
    assert remove(shapes, "orders") == 0
    assert add(shapes, LATE) == 0
    assert [fault.shape_id for fault in read_shapes_file(shapes).faults] == ["bad"]
    assert add(shapes, "id: bad\ntable: public.late\n") == 2
    assert remove(shapes, "bad") == 0
    assert read_shapes_file(shapes).ids == ("early", "events", "late", "users")


def test_nothing_is_removed_while_an_id_cannot_be_read(shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Capture would not remove it, and the command would wait for nothing."""
    (shapes / "more.yaml").write_text("shapes:\n  - table: public.users\n")
    assert remove(shapes, "orders") == 2
    assert "more.yaml line 2: shapes[0].id is missing. Correct this entry first" in capsys.readouterr().err
    assert "orders.yaml" in texts(shapes)


def test_what_the_catalog_does_not_allow_is_not_written(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All reasons are shown. Without a server nothing is written either, unless it is not to be asked."""

    def refuse(*_: object) -> list[FlushtrackerError]:
        return [ShapeError("no table a"), ShapeError("no column b")]

    def fail(*_: object) -> list[FlushtrackerError]:
        raise PostgresUnavailableError("no server")

    for check, exit_code, message in ((refuse, 2, "no table a; no column b"), (fail, 7, "no server")):
        monkeypatch.setattr("flushtracker.operate.shapes.add_program.catalog_errors", check)
        assert add(shapes, LATE) == exit_code
        assert message in capsys.readouterr().err
        assert texts(shapes) == FILES
    assert add(shapes, LATE, "--offline") == 0
    assert "late" in read_shapes_file(shapes).ids
