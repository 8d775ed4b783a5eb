"""A configuration file as a tree of YAML nodes, read in bounded time.

The nodes are never converted to objects. So no tag can construct anything, an alias costs nothing until it is accessed,
and each value keeps its line.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from flushtracker.errors import ConfigError

_MAX_LEVELS: Final = 50
"""Without a limit, PyYAML takes time quadratic in the number of open brackets, and recurses for each level."""
_SHOWN_LENGTH: Final = 60
_FACT_LENGTH: Final = 200
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


@dataclass(frozen=True, slots=True)
class ConfigOrigin:
    """The file's name for messages, and the variables that its values may refer to."""

    file: str
    environ: Mapping[str, str]

    def error(self, line: int, fact: str) -> ConfigError:
        return ConfigError(f"{self.file} line {line}: {fact}")

    def refuse(self, line: int, fact: str, cause: Exception | None = None) -> NoReturn:
        raise self.error(line, fact) from cause


def read_files(path: Path) -> dict[Path, bytes]:
    """The content of a file, or of each ``*.yaml`` in a folder, sorted by name.

    Hidden files, folders and other names are ignored, for example editors' backup files.

    Raises:
        ConfigError: one of them cannot be read, so its shapes are unknown.
    """
    paths = _listed(path)
    while True:
        found, error = dict[Path, bytes](), None
        try:
            found = {each: _content(each) for each in paths}
        except ConfigError as failure:
            error = failure
        # A file renamed meanwhile may be listed under neither name; a deleted one is not an error.
        before, paths = paths, _listed(path)
        if paths == before:
            if error is not None:
                raise error
            return found


def _listed(path: Path) -> list[Path]:
    with _reading(path):
        return sorted(filter(_is_listed, path.iterdir())) if path.is_dir() else [path]


def _is_listed(path: Path) -> bool:
    return path.name.endswith(".yaml") and not path.name.startswith(".") and not path.is_dir()


def _content(path: Path) -> bytes:
    with _reading(path):
        return path.read_bytes()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def read_tree(path: Path, origin: ConfigOrigin, content: bytes | None = None) -> yaml.MappingNode:
    """The mapping in the file, or in ``content`` instead.

    Raises:
        ConfigError: the file cannot be read, or is not UTF-8, not YAML, nested too deeply, empty, or not a mapping.
    """
    node = compose(_decoded(_content(path) if content is None else content, origin), origin)
    if not isinstance(node, yaml.MappingNode):
        origin.refuse(line_of(node), "expected a mapping of keys to values")
    return node


def compose(text: str, origin: ConfigOrigin) -> yaml.Node:
    """The root node of a text.

    An alias is the same node as its anchor, so the nodes may form a cycle.

    Raises:
        ConfigError: it is not YAML, nested too deeply, or empty.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
    except _TooDeepError as error:
        origin.refuse(error.line, f"more than {_MAX_LEVELS} lists and mappings are nested in each other", error)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        fact = ", ".join(shortened(part, _FACT_LENGTH) for part in (error.context, error.problem) if part)
        origin.refuse(mark.line + 1 if mark else 1, f"not YAML: {fact}", error)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        origin.refuse(line, f"not YAML: it contains the control character U+{error.character:04X}", error)
    if node is None:
        raise ConfigError(f"{origin.file} is empty")
    return node


def line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def shortened(text: str, length: int = _SHOWN_LENGTH) -> str:
    return text if len(text) <= length else text[:length] + "…"


def _decoded(content: bytes, origin: ConfigOrigin) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        origin.refuse(bytes(error.object[: error.start]).count(b"\n") + 1, "not UTF-8 text", error)


class _TooDeepError(Exception):
    """More than ``_MAX_LEVELS`` levels on ``line``."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Loader(yaml.SafeLoader):
    """Counts open brackets and indentations while it splits the text into tokens, before any recursion.

    JSON encoders write a character beyond U+FFFF as two escapes, which YAML reads as two characters.
    """

    def scan_flow_scalar(self, style: str) -> yaml.ScalarToken:
        token = super().scan_flow_scalar(style)
        token.value = _PAIR.sub(lambda found: found[0].encode("utf-16", "surrogatepass").decode("utf-16"), token.value)
        return token

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803  PyYAML's name
        super().fetch_flow_collection_start(TokenClass)
        self._check_level()

    def add_indent(self, column: int) -> bool:
        is_new = super().add_indent(column)
        if is_new:
            self._check_level()
        return is_new

    def _check_level(self) -> None:
        if self.flow_level + len(self.indents) > _MAX_LEVELS:
            raise _TooDeepError(self.line + 1)
