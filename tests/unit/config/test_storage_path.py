"""Places: spellings of one place, nesting, and a configuration that would have one folder inside another."""

from pathlib import Path

import pytest

from flushtracker.config.job_config import load_config
from flushtracker.config.storage_path import is_inside, place_of
from tests.support.config_files import ConfigFile

FILE = ConfigFile("job.yaml", load_config)

FILES = """\
source:  {format: files, fragments: FRAGMENTS, flushes: FLUSHES}
state:   {checkpoint: CHECKPOINT}
sink:    {acks: ACKS, dead_letters: LETTERS}
trigger: available_now
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("data/acks", "data/acks/"),
        ("data/acks", "./data//x/../acks/."),
        ("/data/acks", "file:///data/acks"),
        ("/data/acks", "file:/data/acks/"),
        ("/data/acks", "FILE://localhost/data/acks"),
        ("/data/my acks", "file:///data/my%20acks"),
        ("s3://bucket/acks", "s3a://bucket/acks/"),
        ("s3://bucket/acks", "S3://key:secret@Bucket/x/../acks"),
        ("hdfs://name/acks", "hdfs://name:8020/acks/"),
        ("az://files/acks", "abfss://files@account.dfs.core.windows.net/acks"),
        ("gs://bucket/acks", "gcs://bucket//acks"),
    ],
)
def test_spellings_of_one_place_are_equal(one: str, other: str) -> None:
    """Spark and deltalake may each need their own spelling."""
    assert place_of(one) == place_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/data/acks", "/data/acks2"),
        ("/data/acks", "s3://data/acks"),
        ("s3://one/acks", "s3://two/acks"),
        ("s3://bucket/acks", "gs://bucket/acks"),
        ("s3://bucket/Acks", "s3://bucket/acks"),
        ("hdfs://name/acks", "hdfs://name/acks/../letters"),
    ],
)
def test_different_places_are_not_inside_each_other(one: str, other: str) -> None:
    """A common beginning of two names is no nesting."""
    assert not is_inside(place_of(one), place_of(other))
    assert not is_inside(place_of(other), place_of(one))


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    """Also where the last folders do not exist yet."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    assert place_of(str(tmp_path / "link" / "acks")) == place_of(str(tmp_path / "real" / "acks"))
    assert is_inside(place_of(f"file:{tmp_path}/link/acks/checkpoint"), place_of(str(tmp_path / "real" / "acks")))


def config(**paths: str) -> str:
    """A configuration with ``paths`` by the names in ``FILES``; the others have folders of their own."""
    text = FILES
    for name in ("FRAGMENTS", "FLUSHES", "CHECKPOINT", "ACKS", "LETTERS"):
        text = text.replace(name, paths.get(name, f"/flushtracker-test/{name.lower()}"))
    return text


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"CHECKPOINT": "/d/acks/c", "ACKS": "/d/acks"}, "line 3: sink.acks contains state.checkpoint; each needs a "),
        ({"CHECKPOINT": "/d/c", "ACKS": "/d/c/acks"}, "line 3: sink.acks is inside state.checkpoint; each needs a "),
        ({"LETTERS": "file:/d/acks/l", "ACKS": "/d/acks"}, "line 3: sink.dead_letters is inside sink.acks; each needs"),
        ({"LETTERS": "/d", "ACKS": "/d/acks"}, "line 3: sink.dead_letters contains sink.acks; each needs a folder"),
        ({"FLUSHES": "/d/acks/f", "ACKS": "/d/x/../acks"}, "line 3: sink.acks contains source.flushes; each needs a "),
        ({"FRAGMENTS": "/d/f", "FLUSHES": "/d/f/g"}, "line 1: source.flushes is inside source.fragments; each needs"),
        ({"ACKS": "s3://b/a", "LETTERS": "s3a://b/a/l/"}, "line 3: sink.dead_letters is inside sink.acks; each needs"),
        ({"ACKS": "s3://b", "CHECKPOINT": "s3a://b/c"}, "line 3: sink.acks contains state.checkpoint; each needs a "),
        ({"ACKS": "hdfs://n/a/", "LETTERS": "hdfs://n:8020/a"}, "line 3: sink.dead_letters is the same as sink.acks; "),
        ({"ACKS": "file:/d/a%00b"}, "line 3: sink.acks is 'file:/d/a%00b', not a path or a URI that leads to a folder"),
    ],
)
def test_a_folder_inside_another_is_refused(tmp_path: Path, paths: dict[str, str], message: str) -> None:
    """A compaction deletes old files in the folder of the acks, and a recovery moves the checkpoint's."""
    assert FILE.refusal(tmp_path, config(**paths)).startswith(f"job.yaml {message}")


def test_a_folder_inside_another_by_a_link_is_refused(tmp_path: Path) -> None:
    """The text of the paths does not show it."""
    (tmp_path / "acks").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "acks", target_is_directory=True)
    text = config(ACKS=str(tmp_path / "acks"), LETTERS=f"{tmp_path}/elsewhere/letters")
    assert "sink.dead_letters is inside sink.acks" in FILE.refusal(tmp_path, text)


def test_folders_beside_each_other_are_accepted(tmp_path: Path) -> None:
    """Also with a common beginning of their names."""
    text = config(ACKS="s3://b/acks", LETTERS="s3a://b/acks-letters", CHECKPOINT="s3a://b/acks.checkpoint")
    assert FILE.load(tmp_path, text).sink.acks == "s3://b/acks"
