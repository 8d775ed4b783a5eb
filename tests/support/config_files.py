"""Configuration files written for a test, and the messages with which they are refused."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import pytest

from flushtracker.errors import ConfigError

DURATION: Final = 'a number above zero and a unit (ms, seconds, minutes, hours, days), such as "60 seconds" or 10m'
"""What a refused duration should have been, in every message about one."""

_Config = TypeVar("_Config")


@dataclass(frozen=True)
class ConfigFile(Generic[_Config]):
    """A kind of configuration file: the name that it gets in a test's folder, and the function that loads it."""

    name: str
    loader: Callable[[Path], _Config]

    def load(self, folder: Path, text: str | bytes) -> _Config:
        """Write the file with this text, and load it."""
        path = folder / self.name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return self.loader(path)

    def refusal(self, folder: Path, text: str | bytes, kind: type[ConfigError] = ConfigError) -> str:
        """The message of the error, of exactly this kind, when a file with this text is loaded."""
        with pytest.raises(ConfigError) as caught:
            self.load(folder, text)
        assert type(caught.value) is kind
        return shown(folder, caught)


def shown(folder: Path, caught: pytest.ExceptionInfo[ConfigError]) -> str:
    """The message of a caught error, which is one line, without the folder of the file that it names."""
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{folder}/", "")
