"""A configuration that was given to the wrong program says whose it is."""

from pathlib import Path
from typing import Final

import pytest

from flushtracker.cli import main
from flushtracker.config.file_kinds import CAPTURE, KAFKA, KINDS, SHAPES, SNAPSHOT, TRACK, WRITE, FileKind, read_kind
from flushtracker.errors import ConfigError

CONF: Final = Path(__file__).parents[3] / "conf"
KIND_OF: Final = {
    "capture.yaml": CAPTURE,
    "kafka.yaml": KAFKA,
    "replay.yaml": TRACK,
    "shapes.yaml": SHAPES,
    "snapshot_shapes.yaml": SNAPSHOT,
    "track_flushes.yaml": TRACK,
    "write_replay.yaml": WRITE,
    "write_shapes.yaml": WRITE,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", KIND_OF)
def test_each_file_of_conf_is_told_from_every_other_kind(name: str, kind: FileKind) -> None:
    """It is read as its own kind, and refused as any other one, by the name of its own."""
    if KIND_OF[name] is kind:
        read_kind(CONF / name, kind)
        return
    with pytest.raises(ConfigError) as caught:
        read_kind(CONF / name, kind)
    assert str(caught.value).startswith(f"{CONF / name} is {KIND_OF[name].name}, not ")


@pytest.mark.parametrize(
    ("command", "file", "message"),
    [
        ("track", "capture.yaml", "a configuration of `flushtracker capture`, not of `flushtracker track`"),
        ("capture", "track_flushes.yaml", "a configuration of `flushtracker track`, not of `flushtracker capture`"),
        ("write", "snapshot_shapes.yaml", "a configuration of `flushtracker snapshot`, not of `flushtracker write`"),
        ("snapshot", "write_shapes.yaml", "a configuration of `flushtracker write`, not of `flushtracker snapshot`"),
        ("topics", "capture.yaml", "a configuration of `flushtracker capture`, not a list of topics"),
        ("report", "shapes.yaml", "a list of shapes, not a configuration of `flushtracker track`"),
    ],
)
def test_newcomer_gives_one_programs_file_to_another(
    command: str, file: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first key that the program does not know would say nothing."""
    assert main([command, "--config", str(CONF / file)]) == 2
    assert capsys.readouterr().err == f"flushtracker {command}: {CONF / file} is {message}\n"


def test_newcomer_gives_a_configuration_as_the_list_of_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Capture's configuration has a key `shapes`, too, but it names a file."""
    out = ["--recording", "r", "--out", str(tmp_path)]
    assert main(["replay", "--shapes", str(CONF / "capture.yaml"), *out]) == 2
    assert "is a configuration of `flushtracker capture`, not a list of shapes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("postgres: {connection: {host: h}}\nkafka: {}\nshapes: s.yaml\nacks: a\n", "postgres.slot is missing"),
        ("postgres: 7\nkafka: []\nacks: a\nshapes: s.yaml\n", "postgres is a number"),
        ("- a\n", "expected a mapping"),
    ],
)
def test_a_file_with_mistakes_is_taken_for_what_it_is_given_as(tmp_path: Path, text: str, line: str) -> None:
    """What cannot be told for sure is left to the program's own strict reading, which names the line."""
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_kind(file, CAPTURE).mapping("postgres").text("slot")
    assert line in str(caught.value)
