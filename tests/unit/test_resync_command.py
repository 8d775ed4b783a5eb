"""``flushtracker resync``: the incarnations in the shapes file, and nothing else, are raised."""

from pathlib import Path

import pytest
import yaml

from flushtracker.cli import main
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import read_shapes
from flushtracker.wal.log_offset import LogOffset
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


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("flushtracker.operate.shapes.resync_program.RegistryLook", Registry)
    path = tmp_path / "shapes.yaml"
    path.write_text(SHAPES)
    return path


def resync(shapes: Path, *arguments: str, confirm: str = "--yes") -> int:
    config = shapes.parent / "capture.yaml"
    config.write_text(yaml.safe_dump(CONFIG | {"shapes": str(shapes), "acks": "acks"}))
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
    found = {shape.id: shape.incarnation for shape in read_shapes(shapes).definitions}
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
