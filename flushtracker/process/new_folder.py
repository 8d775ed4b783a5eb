"""``new_folder``: the folder for a trial's data and logs."""

from pathlib import Path

from flushtracker.errors import ConfigError


def new_folder(folder: Path) -> Path:
    """Create a folder, which the option ``--data`` names or contains; raises ``ConfigError``."""
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--data: {folder} cannot be created: {error.strerror}; name another directory") from error
    return folder
