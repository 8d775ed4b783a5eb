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


def config(storage: str, checkpoint: str, files: str = "/flushtracker-test/streams") -> str:
    return f"files: {files}\nstorage: {storage}\ntrack: {{checkpoint: '{checkpoint}'}}\n"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("/d", "/d/x/../acks"), "line 3: track.checkpoint is the same as acks; each needs its own"),
        (("/d", "/d/acks/c"), "line 3: track.checkpoint is inside acks; each needs a folder of its own"),
        (("/d/e", "/d"), "line 3: track.checkpoint contains acks; each needs a folder of its own"),
        (("/d", "file:/d/log"), "line 3: track.checkpoint is the same as log; each needs its own"),
        (("s3://b", "s3a://b/dead_letters/l/"), "line 3: track.checkpoint is inside dead_letters; each needs a folder"),
        (("hdfs://n/a", "hdfs://n:8020/a/log_shapes"), "line 3: track.checkpoint is the same as log_shapes; each "),
        (("/d", "/c", "/d/acks"), "line 1: files.path/fragments is inside acks; each needs a folder of its own"),
        (("/d", "/f/flushes", "/f"), "line 1: files.path/flushes is the same as track.checkpoint; each needs its own"),
        (("/d", "file:/d/a%00b"), "line 3: track.checkpoint is not a path or a URI that leads to a folder"),
        (("file:/d/a%00b", "/c"), "line 2: acks is not a path or a URI that leads to a folder"),
    ],
)
def test_a_folder_inside_another_is_refused(tmp_path: Path, paths: tuple[str, ...], message: str) -> None:
    """A compaction deletes old files in the folder of the acks, and a recovery moves the checkpoint's."""
    assert FILE.refusal(tmp_path, config(*paths)).startswith(f"job.yaml {message}")


def test_a_folder_inside_another_by_a_link_is_refused(tmp_path: Path) -> None:
    """The text of the paths does not show it."""
    (tmp_path / "acks").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "acks", target_is_directory=True)
    text = config(str(tmp_path), f"{tmp_path}/elsewhere/checkpoint")
    assert "track.checkpoint is inside acks" in FILE.refusal(tmp_path, text)


def test_folders_beside_each_other_are_accepted(tmp_path: Path) -> None:
    """Also with a common beginning of their names, and streams beside the tables, as `make run` has them."""
    text = config("s3://b", "s3a://b/acks.checkpoint")
    assert FILE.load(tmp_path, text).sink.acks == "s3://b/acks"
    assert FILE.load(tmp_path, config("data", "data/checkpoint", "data")).sink.acks == "data/acks"
