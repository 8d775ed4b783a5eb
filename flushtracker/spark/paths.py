"""Paths as Spark and Python both take them, whatever either one's working directory is."""

from pathlib import Path
from urllib.parse import quote

from flushtracker.errors import ConfigError


def spark_path(path: str) -> str:
    """An absolute path, or a URI (``s3a://…``, ``file:/…``) as it is."""
    return path if "://" in path or path.startswith("file:") else str(Path(path).absolute())


def checkpoint_path(path: str) -> str:
    """As :func:`spark_path`; raises ``ConfigError`` for a path where Spark can write state, but not read it back."""
    absolute = spark_path(path)
    if strange := sorted({character for character in absolute if quote(character, safe=":/@+,=~") != character}):
        raise ConfigError(
            f"state.checkpoint {absolute} has {' '.join(map(repr, strange))}, with which Spark cannot read its state "
            f"back; name a path without"
        )
    return absolute
