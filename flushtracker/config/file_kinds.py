"""The kinds of configuration files, recognized by their keys.

Otherwise a file passed to the wrong program would be refused for its first unknown key, which does not help.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flushtracker.config.strict_yaml import YamlMapping, read_yaml
from flushtracker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FileKind:
    """``marks``: a file is of the first kind all of whose dotted keys it has."""

    name: str
    marks: tuple[str, ...]


TRACK: Final = FileKind("a configuration of `flushtracker track`", ("source.fragments", "source.flushes", "sink.acks"))
WRITE: Final = FileKind("a configuration of `flushtracker write`", ("source.shape_changes", "flushes", "sink.log"))
CAPTURE: Final = FileKind("a configuration of `flushtracker capture`", ("postgres.slot", "kafka", "acks"))
SNAPSHOT: Final = FileKind("a configuration of `flushtracker snapshot`", ("postgres.publication", "sink.log"))
SERVE: Final = FileKind("a configuration of `flushtracker serve`", ("http.listen", "sink.log"))
KAFKA: Final = FileKind("a list of topics", ("bootstrap_servers", "topics"))
SHAPES: Final = FileKind("a list of shapes", ("shapes[]",))
LOOP: Final = FileKind("a configuration of `flushtracker conformance-loop`", ("postgres.connection", "kafka", "place"))
KINDS: Final = (TRACK, WRITE, CAPTURE, SNAPSHOT, SERVE, KAFKA, SHAPES, LOOP)


def read_kind(path: Path, kind: FileKind, content: bytes | None = None) -> YamlMapping:
    """Read a file that should be of this kind, or ``content`` as that file, without checking its keys.

    Raises:
        ConfigError: the file cannot be read as YAML, or is of another kind.
    """
    root = read_yaml(path, content=content)
    found = next((other for other in KINDS if all(map(root.has_path, other.marks))), kind)
    if found is not kind:
        raise ConfigError(f"{path} is {found.name}, not {_briefly(kind, found)}")
    return root


def _briefly(kind: FileKind, found: FileKind) -> str:
    of = "a configuration "
    return kind.name.removeprefix(of) if found.name.startswith(of) else kind.name
