"""Strict reading of configuration files: every key is known, every value has its type, every error has its line.

The caller reads the keys of a :class:`YamlMapping` one by one, by type.

``${NAME}`` in a value stands for an environment variable; ``$${`` is a literal ``${``. Messages show ``${NAME}`` as in
the file, never the variable's value: it may be a secret.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from flushtracker.config.units import BYTES_FORM, DURATION_FORM, parse_bytes, parse_duration_ms
from flushtracker.config.yaml_tree import ConfigOrigin, line_of, read_tree, shortened
from flushtracker.errors import ConfigError, ShapeError, did_you_mean

_WHOLE_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,230}")
_VARIABLE: Final = re.compile(r"(?P<escaped>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<broken>\$\{)")

_YAML: Final = "tag:yaml.org,2002:"
_TEXT: Final = _YAML + "str"
_NULL: Final = _YAML + "null"
_TYPE_NAMES: Final = {
    _TEXT: "a string",
    _NULL: "empty",
    _YAML + "bool": "a boolean",
    _YAML + "int": "a number",
    _YAML + "float": "a number",
    _YAML + "timestamp": "a date",
    _YAML + "map": "a mapping",
    _YAML + "seq": "a list",
}
"""Descriptions of the tags that YAML itself assigns. No other tag is accepted."""


def read_yaml(path: Path, environ: Mapping[str, str] = os.environ, content: bytes | None = None) -> "YamlMapping":
    """Read a file that contains a YAML mapping, or ``content`` as that file.

    Raises:
        ConfigError: the file cannot be read, or is not UTF-8, not YAML, nested too deeply, empty, or not a mapping.
    """
    origin = ConfigOrigin(str(path), environ)
    return YamlMapping(read_tree(path, origin, content), origin, "", 1)


@dataclass(frozen=True, slots=True)
class YamlText:
    """A string; ``str`` returns it for messages, in quotes, with variables as ``${NAME}``."""

    value: str
    shown: str
    line: int

    def __str__(self) -> str:
        return _quoted(self.shown)


class YamlMapping:
    """A mapping in the file; read its keys by type, and list all allowed ones with :meth:`allow`.

    ``line`` is where it starts. Each reader raises :class:`ConfigError` naming the file, the line and the key.
    """

    def __init__(self, node: yaml.MappingNode, origin: ConfigOrigin, name: str, line: int) -> None:
        self.line = line
        self._origin = origin
        self._name = name
        self._separator = "."
        self._values: dict[str, tuple[int, yaml.Node]] = {}
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                origin.refuse(line_of(key_node), f"{name or 'the file'} has a key that is not a string")
            key = key_node.value
            if not key.isprintable():
                fact = f"{name or 'the file'} has the key {_quoted(key)}, with a character that cannot be printed"
                origin.refuse(line_of(key_node), fact)
            if key in self._values:
                origin.refuse(line_of(key_node), f"duplicate key {self.label(key)}, first on line {self._line(key)}")
            self._values[key] = (line_of(key_node), value)

    def renamed(self, name: str) -> "YamlMapping":
        """The same mapping with another name in messages: ``shape users-eu`` is clearer than ``shapes[3]``."""
        twin = YamlMapping.__new__(YamlMapping)
        twin.line, twin._origin, twin._values = self.line, self._origin, self._values
        twin._name, twin._separator = name, ": "
        return twin

    def fill(self, key: str, value: yaml.Node) -> None:
        """Give a key that is absent its default."""
        self._values.setdefault(key, (self.line, value))

    def in_a_line(self, key: str) -> str:
        """A value with its variables filled in, or a list of values as in the file."""
        line, node = self._required(key)
        if isinstance(node, yaml.SequenceNode):
            return ", ".join(str(each.value) for each in node.value)
        return self._scalar(self.label(key), line, node).value

    def texts(self, name: str, texts: Mapping[str, str], line: int) -> "YamlMapping":
        """A mapping of these texts, which are on this line under another form."""
        mark = yaml.Mark("", 0, line - 1, 0, None, 0)
        pairs = [tuple(yaml.ScalarNode(_TEXT, text, mark, mark) for text in pair) for pair in texts.items()]
        return YamlMapping(yaml.MappingNode(_YAML + "map", pairs), self._origin, name, line)

    def allow(self, *known: str) -> None:
        """Refuse all other keys."""
        for key, (line, _) in self._values.items():
            if key not in known:
                advice = did_you_mean(key, known) or f"; known keys: {', '.join(known)}"
                self._origin.refuse(line, f"{self.label(key)} is not a known key{advice}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def has_path(self, path: str) -> bool:
        """Whether there is a value at a dotted path of keys; ``[]`` at the end requires a list. Raises nothing."""
        key, _, rest = path.removesuffix("[]").partition(".")
        node = self._values[key][1] if key in self._values else None
        for name in rest.split(".") if rest else ():
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            node = next((value for key_node, value in pairs if key_node.value == name), None)
        return isinstance(node, yaml.SequenceNode) if path.endswith("[]") else node is not None

    def scalars(self) -> dict[str, str]:
        """All keys and values of a mapping with arbitrary keys; numbers and booleans are returned as written."""
        return {key: self._scalar(self.label(key), *self._required(key)).value for key in self._values}

    def text(self, key: str, *, empty: bool = False) -> YamlText:
        """A required string, which may be empty only with ``empty``."""
        return self._text(self.label(key), *self._required(key), empty=empty)

    def choice(self, key: str, *choices: str) -> str:
        """A required string that is one of these."""
        chosen = self.text(key).value
        if chosen not in choices:
            raise self.wrong(key, " or ".join(choices))
        return chosen

    def topic_name(self, key: str) -> str:
        """A required name of a topic; Spark would read one with a comma as several."""
        name = self.text(key).value
        if not _TOPIC.fullmatch(name):
            raise self.wrong(key, "a topic name: letters, digits, '.', '_' and '-'")
        return name

    def optional_text(self, key: str) -> YamlText | None:
        return self.text(key) if key in self else None

    def optional_integer(self, key: str, *, at_least: int, at_most: int = 2**31 - 1) -> int | None:
        """A whole number within its limits, or ``None`` if the key is absent."""
        if key not in self:
            return None
        text = self._unquoted(key)
        if text is None or not _WHOLE_NUMBER.fullmatch(text):
            raise self.wrong(key, "a whole number")
        number = int(text)
        if not at_least <= number <= at_most:
            limit = f"a number of at least {at_least}" if number < at_least else f"a number of at most {at_most}"
            raise self.wrong(key, limit)
        return number

    def integer(self, key: str, *, at_least: int, at_most: int = 2**31 - 1) -> int:
        """A required whole number within its limits."""
        self._required(key)
        return self.optional_integer(key, at_least=at_least, at_most=at_most) or 0

    def optional_boolean(self, key: str) -> bool | None:
        """``true`` or ``false``, or ``None`` if the key is absent."""
        if key not in self:
            return None
        text = self._unquoted(key)
        if text not in {"true", "false"}:
            raise self.wrong(key, "true or false")
        return text == "true"

    def optional_duration_ms(self, key: str) -> int | None:
        """A duration such as ``60 seconds`` in milliseconds, or ``None`` if the key is absent."""
        if key not in self:
            return None
        try:
            return parse_duration_ms(self.text(key).value)
        except ValueError:
            # The cause is dropped because it could show a variable's value.
            raise self.wrong(key, DURATION_FORM) from None

    def duration_ms(self, key: str) -> int:
        """A required duration such as ``60 seconds`` in milliseconds."""
        self._required(key)
        return self.optional_duration_ms(key) or 0

    def optional_bytes(self, key: str, or_else: str = "") -> int | None:
        """A size such as ``5 GB``, or ``None`` if the key is absent; ``or_else``: what else messages name."""
        if key not in self:
            return None
        try:
            return parse_bytes(self.text(key).value)
        except ValueError:
            # The cause is dropped because it could show a variable's value.
            raise self.wrong(key, BYTES_FORM + or_else) from None

    def mapping(self, key: str) -> "YamlMapping":
        line, node = self._required(key)
        return self._mapping(self.label(key), line, node)

    def optional_mapping(self, key: str) -> "YamlMapping | None":
        return self.mapping(key) if key in self else None

    def mappings(self, key: str) -> tuple["YamlMapping | ConfigError", ...]:
        """A required list of mappings, which may be empty; an item that is not a mapping is replaced by its error."""
        items: list[YamlMapping | ConfigError] = []
        for number, node in enumerate(self._items(key)):
            try:
                items.append(self._mapping(f"{self.label(key)}[{number}]", line_of(node), node))
            except ConfigError as error:  # noqa: PERF203  the others are wanted, too
                items.append(error)
        return tuple(items)

    def optional_texts(self, key: str) -> tuple[YamlText, ...] | None:
        """A list of distinct, non-empty strings, or ``None`` if the key is absent. The list may be empty."""
        if key not in self:
            return None
        label = self.label(key)
        items = enumerate(self._items(key))
        texts = tuple(self._text(f"{label}[{i}]", line_of(node), node, empty=False) for i, node in items)
        seen = set()
        for text in texts:
            if text.value in seen:
                self._origin.refuse(text.line, f"{label} lists {text} twice")
            seen.add(text.value)
        return texts

    def wrong(self, key: str, expected: str) -> ConfigError:
        """An error about a value that is not as ``expected``."""
        line, node = self._required(key)
        shown = _quoted(node.value) if isinstance(node, yaml.ScalarNode) else _kind(node)
        return self._origin.error(line, f"{self.label(key)} is {shown}, not {expected}")

    def error(self, key: str, fact: str) -> ConfigError:
        """An error about a key, or about the whole mapping if the key is absent."""
        line = self._line(key) if key in self else self.line
        return self._origin.error(line, f"{self.label(key)} {fact}")

    def shape_error(self, key: str, fact: str) -> ShapeError:
        """Like :meth:`error`, for an error in a shape's definition."""
        line = self._line(key) if key in self else self.line
        return ShapeError(f"{self._origin.file} line {line}: {self._name}: {fact}")

    def node(self, key: str) -> tuple[int, yaml.Node]:
        """A key's line and its value as it is in the file."""
        return self._required(key)

    @property
    def origin(self) -> ConfigOrigin:
        return self._origin

    @property
    def file(self) -> str:
        return self._origin.file

    @property
    def lines(self) -> dict[str, int]:
        return {key: line for key, (line, _) in self._values.items()}

    def _line(self, key: str) -> int:
        return self._values[key][0]

    def label(self, key: str) -> str:
        """The key's name in messages, with the sections that it is in."""
        shown = shortened(key)
        return f"{self._name}{self._separator}{shown}" if self._name else shown

    def _unquoted(self, key: str) -> str | None:
        """A value as text, expanded; ``None`` if it is in quotes.

        In YAML a plain ${NAME} is a string, but its expansion may be a number. A quoted "16" is always a string.
        """
        line, node = self._required(key)
        scalar = self._scalar(self.label(key), line, node)
        return None if isinstance(node, yaml.ScalarNode) and node.style is not None else scalar.value

    def _required(self, key: str) -> tuple[int, yaml.Node]:
        if key not in self:
            self._origin.refuse(self.line, f"{self.label(key)} is missing")
        return self._values[key]

    def _mapping(self, label: str, line: int, node: yaml.Node) -> "YamlMapping":
        if not isinstance(node, yaml.MappingNode) or node.tag not in _TYPE_NAMES:
            self._origin.refuse(line, f"{label} is {_kind(node)}, not a mapping of keys to values")
        return YamlMapping(node, self._origin, label, line)

    def _items(self, key: str) -> list[yaml.Node]:
        line, node = self._required(key)
        if not isinstance(node, yaml.SequenceNode) or node.tag not in _TYPE_NAMES:
            self._origin.refuse(line, f"{self.label(key)} is {_kind(node)}, not a list")
        items: list[yaml.Node] = node.value
        return items

    def _text(self, label: str, line: int, node: yaml.Node, *, empty: bool) -> YamlText:
        scalar = self._scalar(label, line, node)
        if node.tag != _TEXT:
            self._origin.refuse(line, f"{label} is {_kind(node)}; put it in quotes if a string is meant")
        if not scalar.value and not empty:
            self._origin.refuse(line, f"{label} is empty{f', expanded from {scalar}' if scalar.shown else ''}")
        return scalar

    def _scalar(self, label: str, line: int, node: yaml.Node) -> YamlText:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _TYPE_NAMES:
            self._origin.refuse(line, f"{label} is {_kind(node)}, not a single value")
        if node.tag == _NULL:
            self._origin.refuse(line, f"{label} has no value; give it one or leave the key out")
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in node.value):
            self._origin.refuse(
                line, f"{label} contains a NUL or an unpaired surrogate, which no name, path or text can contain"
            )
        return YamlText(self._expand(label, line, node.value), node.value, line)

    def _expand(self, label: str, line: int, text: str) -> str:
        def expansion(found: re.Match[str]) -> str:
            if found["escaped"]:
                return "${"
            if found["broken"]:
                self._origin.refuse(line, f"{label} contains a ${{ that is not ${{NAME}}; write a literal one as $${{")
            name = found["name"]
            if name not in self._origin.environ:
                self._origin.refuse(line, f"{label} names the environment variable {shortened(name)}, which is not set")
            return self._origin.environ[name]

        return _VARIABLE.sub(expansion, text)


def _kind(node: yaml.Node) -> str:
    return _TYPE_NAMES.get(node.tag, f"a node with the unknown tag {shortened(node.tag.removeprefix(_YAML))}")


def _quoted(text: str) -> str:
    return repr(shortened(text))
