"""The kinds of configuration files, recognized by their keys.

Otherwise a file passed to the wrong program would be refused for its first unknown key, which does not help.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flushtracker.config import program_forms
from flushtracker.config.one_file import Form, OneFile, is_one_file
from flushtracker.config.strict_yaml import YamlMapping, read_yaml
from flushtracker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FileKind:
    """``marks``: a file is of the first kind all of whose dotted keys it has.

    ``form`` is what of the configuration of all programs is of this kind, ``None`` if nothing is.
    """

    name: str
    marks: tuple[str, ...]
    form: Callable[[OneFile], Form] | None = None


ONE: Final = "a configuration of all programs"
TRACK: Final = FileKind(
    "a configuration of `flushtracker track`",
    ("source.fragments", "source.flushes", "sink.acks"),
    program_forms.track_form,
)
WRITE: Final = FileKind(
    "a configuration of `flushtracker write`",
    ("source.shape_changes", "flushes", "sink.log"),
    program_forms.write_form,
)
CAPTURE: Final = FileKind(
    "a configuration of `flushtracker capture`", ("postgres.slot", "kafka", "acks"), program_forms.capture_form
)
SNAPSHOT: Final = FileKind(
    "a configuration of `flushtracker snapshot`", ("postgres.publication", "sink.log"), program_forms.snapshot_form
)
SERVE: Final = FileKind(
    "a configuration of `flushtracker serve`", ("http.listen", "sink.log"), program_forms.serve_form
)
KAFKA: Final = FileKind("a list of topics", ("bootstrap_servers", "topics"), program_forms.kafka_form)
SHAPES: Final = FileKind("a list of shapes", ("shapes[]",))
LOOP: Final = FileKind(
    "a configuration of `flushtracker conformance-loop`",
    ("postgres.connection", "kafka", "place"),
    program_forms.loop_form,
)
KINDS: Final = (TRACK, WRITE, CAPTURE, SNAPSHOT, SERVE, KAFKA, SHAPES, LOOP)


def read_kind(path: Path, kind: FileKind, content: bytes | None = None) -> YamlMapping:
    """Read a file that should be of this kind, or ``content`` as that file, without checking its keys.

    Raises:
        ConfigError: the file cannot be read as YAML, or is of another kind.
    """
    root = read_yaml(path, content=content)
    if is_one_file(root):
        if kind.form is None:
            raise ConfigError(f"{path} is {ONE}, not {kind.name}")
        return program_forms.program_mapping(OneFile(root), kind.form)
    found = next((other for other in KINDS if all(map(root.has_path, other.marks))), kind)
    if found is not kind:
        raise ConfigError(f"{path} is {found.name}, not {_briefly(kind, found)}")
    return root


def read_one_file(path: Path) -> OneFile:
    """Read the configuration of all programs; raises ``ConfigError``, also for that of a single one."""
    root = read_yaml(path)
    if not is_one_file(root):
        found = next((other for other in KINDS if all(map(root.has_path, other.marks))), None)
        raise ConfigError(f"{path} is {'not ' if found is None else f'{found.name}, not '}{ONE}")
    return OneFile(root)


def _briefly(kind: FileKind, found: FileKind) -> str:
    of = "a configuration "
    return kind.name.removeprefix(of) if found.name.startswith(of) else kind.name
