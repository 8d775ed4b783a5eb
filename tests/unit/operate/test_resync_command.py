"""``flushtracker resync``: the incarnations in the shapes' files, and nothing else, are raised."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.cli import main
from flushtracker.config.yaml_tree import read_files
from flushtracker.errors import ShapeError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.operate.shapes.registry_reader import RegistryReader
from flushtracker.operate.shapes.resync_program import resync as edit
from flushtracker.operate.shapes.shapes_edit import edited
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import read_shapes_file
from flushtracker.wal.log_offset import LogOffset
from tests.support.config_file import write_config
from tests.support.fake_world import CONFIG

SHAPES = """\
shapes:
  # The big one.
  - id: users     # all of them
    table: public.users

  - {id: orders, table: public.orders}
  - id: again
    table: public.again
    incarnation: 4  # by hand
  - id: stream
    table: public.stream
    snapshot: false
  - id: new
    table: public.new
"""


class Registry:
    """Capture has ended ``users``, and has begun each shape but ``new``."""

    def __init__(self, *_: object) -> None:
        """As capture has it while it does not run."""

    def entry(self, shape_id: str) -> ShapeEntry | None:
        if shape_id == "new":
            return None
        definition = ShapeDefinition(shape_id, ("public", shape_id), incarnation=3 if shape_id == "again" else 1)
        ended = LogOffset(2, 0) if shape_id == "users" else None
        return ShapeEntry("7/1/s", definition, 1, LogOffset(1, 0), ended, "gone" if ended else None)


REGISTRY: Final = cast("RegistryReader", Registry())


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("flushtracker.operate.shapes.resync_program.RegistryReader", Registry)
    path = tmp_path / "shapes.yaml"
    path.write_text(SHAPES)
    return path


def resync(shapes: Path, *arguments: str, confirm: str = "--yes") -> int:
    config = shapes.parent / "capture.yaml"
    write_config(config, {**CONFIG, "shapes": str(shapes)})
    return main(["resync", *arguments, "--no-wait", "--config", str(config), *([confirm] if confirm else [])])


def test_incarnations_are_raised_and_all_else_stays(shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Repeated, as after a kill, it waits for the same ones; what the file has raised is not raised again."""
    for _ in range(2):
        assert resync(shapes, "users", "orders", "again", "users") == 0
        expected = [f"shape {name} has incarnation {n}" for name, n in (("users", 2), ("orders", 2), ("again", 4))]
        assert capsys.readouterr().out.splitlines() == [f"{line} in {shapes}" for line in expected]
        assert shapes.read_text() == SHAPES.replace(
            "  - id: users     # all of them\n", "  - id: users     # all of them\n    incarnation: 2\n"
        ).replace("{id: orders, ", "{id: orders, incarnation: 2, ")
    found = {shape.id: shape.incarnation for shape in read_shapes_file(shapes).definitions}
    assert found == {"users": 2, "orders": 2, "again": 4, "stream": 1, "new": 1}


@pytest.mark.parametrize(
    ("shape_ids", "message"),
    [
        (["users", "user"], "has no shape 'user'; did you mean users?"),
        (["users", "stream"], "'stream' has snapshot: false, so it cannot begin again"),
        (["users", "new"], "'new' has not begun: capture's registry does not have it"),
    ],
)
def test_what_is_refused_changes_nothing(
    shapes: Path, shape_ids: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even the shapes that could begin again."""
    assert resync(shapes, *shape_ids) == 2
    assert message in capsys.readouterr().err
    assert shapes.read_text() == SHAPES


def test_it_asks_and_says_which_shapes_are_live(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their readers can read until then; without a terminal nobody could answer."""
    assert resync(shapes, "users", "orders", confirm="") == 2
    assert "confirm it with --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "no")
    assert resync(shapes, "users", "orders", confirm="") == 1
    out = capsys.readouterr().out
    assert "Still live, and ended by this: orders." in out
    assert out.endswith("nothing was changed\n")
    assert shapes.read_text() == SHAPES


def test_an_incarnation_without_a_snapshot_is_refused(shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in the log would tell its changes from those of before. The file's other shapes can begin again."""
    shapes.write_text(SHAPES.replace("snapshot: false", "snapshot: false\n    incarnation: 2"))
    assert resync(shapes, "stream") == 2
    assert "incarnation 2 begins with a snapshot" in capsys.readouterr().err
    assert resync(shapes, "users") == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("id: a\ntable: s.t", "id: a\nincarnation: 2\ntable: s.t"),
        ("table: s.t\nid: a", "table: s.t\nid: a\nincarnation: 2"),
        ("# x\nid: 'a' # why\n# next\ntable: s.t\n", "# x\nid: 'a' # why\nincarnation: 2\n# next\ntable: s.t\n"),
        ("\ufeffid: a\r\ntable: s.t\r\n", "\ufeffid: a\r\nincarnation: 2\r\ntable: s.t\r\n"),
        ("{id: a, table: s.t}", "{id: a, incarnation: 2, table: s.t}"),
        ('{"table": "s.t", "id": "a"}', '{"table": "s.t", "id": "a", incarnation: 2}'),
        ("id: a\ntable: s.t\nincarnation: 1   # first\n", "id: a\ntable: s.t\nincarnation: 2   # first\n"),
        (
            "shapes:\n-   &x\n    id: &a a\n    table: s.t\n",
            "shapes:\n-   &x\n    id: &a a\n    incarnation: 2\n    table: s.t\n",
        ),
        ("---\nid: a\ntable: s.t\n...\n", "---\nid: a\nincarnation: 2\ntable: s.t\n...\n"),
        (
            "shapes: [{table: s.t, id: b}, {id: é}, {id: a, table: s.t}]",
            "shapes: [{table: s.t, id: b}, {id: é}, {id: a, incarnation: 2, table: s.t}]",
        ),
        ("id: >-\n  a\ntable: s.t\n", "id: >-\n  a\ntable: s.t\nincarnation: 2\n"),
        ("? id\n: a\n? table\n: s.t\n", None),
        ("shapes:\n- {id: b, table: s.t, flush: {bytes: &n 1}}\n- {id: a, table: s.t, incarnation: *n}\n", None),
    ],
)
def test_an_incarnation_is_set_in_any_notation(tmp_path: Path, before: str, after: str | None) -> None:
    """Nothing else changes; where that is not possible, the message has the number to set."""
    path = tmp_path / "any.yaml"
    path.write_bytes(before.encode())
    with edited(tmp_path) as file:
        if after is None:
            with pytest.raises(ShapeError, match=r"set the incarnations by hand \(2 of a\)"):
                edit(file, ["a"], REGISTRY)
        else:
            assert edit(file, ["a"], REGISTRY) == {"a": 2}
    assert path.read_bytes() == (before if after is None else after).encode()


_TEXTS = st.text("ab#:-'\"{}[] \\|>\u00e9", min_size=1, max_size=8)
_SHAPES = st.lists(
    st.fixed_dictionaries(
        {"table": st.just("s.t"), "id": _TEXTS.map(lambda text: f"x{text}x")},
        optional={"where": _TEXTS.map(lambda text: f"{text}x"), "columns": st.just(["a"])},
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda shape: str(shape["id"]),
)
_STYLES: list[dict[str, Any]] = [{}, {"default_flow_style": None}, {"default_style": '"'}, {"default_flow_style": True}]


@given(shapes=_SHAPES, style=st.sampled_from(_STYLES), data=st.data())
def test_any_list_that_yaml_writes_is_edited_exactly(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[dict[str, Any]], style: dict[str, Any], data: st.DataObject
) -> None:
    """The incarnations of some shapes, and nothing else, differ."""
    path = tmp_path_factory.mktemp("any") / "shapes.yaml"
    path.write_text(yaml.safe_dump({"shapes": shapes}, sort_keys=False, allow_unicode=True, **style))
    before = read_shapes_file(path).all_right()
    chosen = data.draw(st.lists(st.sampled_from([shape.id for shape in before]), unique=True))
    with edited(path) as file:
        edit(file, chosen, REGISTRY)
    expected = tuple(replace(shape, incarnation=2) if shape.id in chosen else shape for shape in before)
    assert read_shapes_file(path).all_right() == expected


def test_each_shape_of_a_folder_is_raised_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure between two files leaves the first, and the repeated command completes the rest."""
    texts = {"a.yaml": "id: a\ntable: s.t\n", "b.yaml": "shapes: [{id: c, table: s.t}, {id: b, table: s.t}]\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    replace_file = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if target.name == "b.yaml":
            raise OSError(28, "No space left on device")
        return replace_file(self, target)

    raised = {path: text.replace("id: a\n", "id: a\nincarnation: 2\n") for path, text in texts.items()}
    with monkeypatch.context() as patch, edited(tmp_path) as file:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="No space"):
            edit(file, ["a", "b", "c"], REGISTRY)
    assert read_files(tmp_path) == {tmp_path / name: text.encode() for name, text in raised.items()}
    with edited(tmp_path) as file:
        assert edit(file, ["a", "b", "c"], REGISTRY) == {"a": 2, "b": 2, "c": 2}
    assert [shape.incarnation for shape in read_shapes_file(tmp_path).definitions] == [2, 2, 2]
