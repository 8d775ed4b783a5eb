"""``new_folder``: the folder of a trial."""

from pathlib import Path

import pytest

from flushtracker.errors import ConfigError
from flushtracker.process.new_folder import new_folder


def test_a_folder_is_created_with_its_parents(tmp_path: Path) -> None:
    """The option may name a folder that does not exist yet."""
    assert new_folder(tmp_path / "data" / "trial").is_dir()


@pytest.mark.parametrize("name", ["file", "file/trial"])
def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path, name: str) -> None:
    """The message names the option, the folder and the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match=rf"--data: \S+/{name} cannot be created: (File exists|Not a directory); name"
    ):
        new_folder(tmp_path / name)
