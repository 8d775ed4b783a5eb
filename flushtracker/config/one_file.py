"""``flushtracker.yaml``, the configuration of all programs: what is in force, and from where.

Each value is an :class:`Entry`: from the file, a default, or derived from another. ``config/program_forms.py`` makes of
them what each program reads, with the nodes of the file, so that its messages have the file's lines and names.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import yaml

from flushtracker.config.config_keys import KEYS, MAY_BE_OFF, PROGRAMS, SECTIONS, SHORT
from flushtracker.config.libpq_text import parse_options
from flushtracker.config.spark_kafka_options import spark_kafka_options
from flushtracker.config.status_config import StatusConfig, read_listen
from flushtracker.config.strict_yaml import YamlMapping
from flushtracker.config.yaml_tree import ConfigOrigin, LabelledNode, compose
from flushtracker.errors import ConfigError, did_you_mean

DEFAULT_CONFIG: Final = "flushtracker.yaml"
CONFIG_VARIABLE: Final = "FLUSHTRACKER_CONFIG"
_ONLY_BEFORE: Final = frozenset(
    {"acks", "bootstrap_servers", "http", "intervals", "place", "sink", "source", "state", "topics", "trigger"}
)
"""Keys that only the configurations of single programs have."""
_TEXT: Final = "tag:yaml.org,2002:str"
_FALSE: Final = "false"
_VARIABLE: Final = re.compile(r"\$?\$\{\w+\}")
_SAME_SERVER: Final = ("host", "hostaddr", "port", "dbname", "service")
Form: TypeAlias = "Mapping[str, Entry | Form | None]"


@dataclass(frozen=True, slots=True)
class Entry:
    """A value in force: its name for messages, its node, its line in the file, and where it is from."""

    label: str
    node: yaml.Node
    line: int
    source: str

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def shown(self) -> str:
        """A value, or a list of values, as in the file, with variables as ``${NAME}``."""
        return ", ".join(str(each.value) for each in (self.node.value if self.is_list else [self.node]))


def is_one_file(root: YamlMapping) -> bool:
    """Whether a file is the configuration of all programs, by its top-level keys."""
    if any(key in root for key in _ONLY_BEFORE):
        return False
    scalars = (key for key in ("postgres", "kafka", "storage") if key in root)
    return (
        any(isinstance(root.node(key)[1], yaml.ScalarNode) for key in scalars)
        or any(key in root for key in ("capture", "track", "write", "serve"))
        or root.has_path("storage.path")
        or ("postgres" in root and not root.has_path("postgres.connection"))
    )


class OneFile:
    """The file, with all its keys checked; raises :class:`ConfigError` naming the file, the line and the key."""

    def __init__(self, root: YamlMapping) -> None:
        self.root = root
        self._variables: dict[str, str] = {}
        self._sections: dict[str, YamlMapping | None] = {"": root}
        self.off: set[str] = set()
        """The programs that the file has not, and ``status`` if it is off."""
        for path in sorted(SECTIONS, key=lambda path: path.count(".") if path else -1):
            if path:
                self._sections[path] = self._section(path)
        for path, section in self._sections.items():
            if section is not None:
                _check_keys(path, section)
        for key in KEYS.values():
            parent = self._sections[key.section]
            if key.is_required and (parent is None or key.name not in parent):
                if parent is None:
                    raise root.error(key.section, "is missing")
                raise parent.error(key.name, "is missing")

    def entry(self, path: str) -> Entry | None:
        """The value of a key, or its default; ``None`` if it has neither."""
        key = KEYS[path]
        section = self._sections[key.section]
        if section is not None and key.name in section:
            line, node = section.node(key.name)
            return Entry(section.label(key.name), node, line, f"line {line}")
        if key.default is None:
            return None
        return Entry(path, compose(key.default, self.origin), section.line if section else 1, "default")

    def text(self, path: str) -> str:
        """The value of a key that has a default or is required, with its variables filled in."""
        return self.value(self.entry(path))

    def value(self, entry: Entry | None) -> str:
        """A text, number or boolean, with its variables filled in; empty without an entry."""
        return "" if entry is None else self.mapping({"value": entry}).scalars()["value"]

    @property
    def origin(self) -> ConfigOrigin:
        """The file with the variables that hold what is derived from others."""
        origin = self.root.origin
        return ConfigOrigin(origin.file, {**origin.environ, **self._variables})

    def mapping(self, form: Form) -> YamlMapping:
        """What a program reads, of entries by its own keys."""
        return YamlMapping(form_node(form), self.origin, "", 1)

    def options(self, *paths: str) -> Form:
        """The mappings at these keys as one; a later one replaces what an earlier one has."""
        found: dict[str, Entry] = {}
        for path in paths:
            key = KEYS[path]
            section = self._sections[key.section]
            options = None if section is None else section.optional_mapping(key.name)
            if options is not None:
                for name in options:
                    line, node = options.node(name)
                    found[name] = Entry(options.label(name), node, line, f"line {line}")
        return found

    def connection(self, path: str = "postgres") -> Form:
        """libpq's keywords for the server; those of ``snapshot.postgres`` are added for ``snapshot``."""
        line, node = self.root.node("postgres")
        if isinstance(node, yaml.ScalarNode):
            found = self._parsed(line)
        else:
            found = dict(self.options("postgres"))
            for name in found.keys() & SECTIONS["capture"]:
                raise self.root.mapping("postgres").error(name, f"is not a keyword of libpq; set capture.{name}")
        own = self.options(path) if path != "postgres" else {}
        for name in _SAME_SERVER:
            mine, theirs = own.get(name), found.get(name)
            if isinstance(mine, Entry) and isinstance(theirs, Entry) and self.value(mine) != self.value(theirs):
                self.root.origin.refuse(
                    mine.line, f"{mine.label} contradicts {theirs.label} on line {theirs.line}: all read one database"
                )
        return {**found, **own}

    def _parsed(self, line: int) -> Form:
        text = self.root.text("postgres")
        is_literal = any(mark in _VARIABLE.sub("", text.shown) for mark in ("://", "="))
        try:
            # A variable's value in a URI needs no escapes: the URI is parsed before it is filled in.
            options = parse_options(text.shown if is_literal else text.value)
        except ConfigError as error:
            raise self.root.error("postgres", f"cannot be used: {error}") from None
        if not is_literal:
            # It all came from the environment, so no part of it is in plain text.
            self._variables |= {f"postgres_{name}": value for name, value in options.items()}
            options = {name: f"${{postgres_{name}}}" for name in options}
        return {
            name: Entry(f"postgres.{name}", text_node(value), line, f"line {line}") for name, value in options.items()
        }

    def spark_options(self, program: str) -> Form:
        """Options of Spark's Kafka source for a job: derived from librdkafka's, unless the file has its own."""
        own = self.options("kafka.spark_options")
        derived = {}
        if not any(name.startswith(("kafka.sasl.", "kafka.ssl.", "kafka.security.")) for name in own):
            kafka = self._sections["kafka"]
            options = None if kafka is None else kafka.optional_mapping("options")
            if options is not None:
                texts, variables = spark_kafka_options(options)
                self._variables |= variables
                derived = {
                    name: Entry(
                        f"{program} {name}", text_node(text), options.line, f"kafka.options, line {options.line}"
                    )
                    for name, text in texts.items()
                }
        return {**derived, **own, **self.options(f"{program}.options")}

    def topic(self, stream: str) -> Entry:
        prefix = self.entry("kafka.topic_prefix")
        return self._derived(f"topic {stream}", prefix, f"{self._raw(prefix)}.{stream}", "kafka.topic_prefix")

    def place(self, name: str, label: str | None = None) -> Entry:
        """A folder below ``storage``."""
        storage = self.entry("storage.path")
        slash = "" if self.value(storage).endswith("/") else "/"
        return self._derived(label or name, storage, f"{self._raw(storage)}{slash}{name}", "storage")

    def checkpoint(self, program: str) -> Entry:
        return self.entry(f"{program}.checkpoint") or self.place(f"checkpoints/{program}", f"{program}.checkpoint")

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that run all the time, in the order of their ports."""
        runs = self.text("snapshot.trigger") != "available_now" and (
            self.text("write.snapshot") == "manual" or self.text("snapshot.into") == "kafka" or "write" in self.off
        )
        return tuple(name for name in PROGRAMS if name not in self.off and (name != "snapshot" or runs))

    def listen(self, program: str) -> Entry:
        """Where a program serves its status."""
        listen = self.entry("status.listen")
        host, port = read_listen(self.mapping({"listen": listen}))
        own = StatusConfig(host, port + PROGRAMS.index(program) if port else 0).listen
        return self._derived(f"status of {program}", listen, own.replace("${", "$${"), "status.listen")

    def status_url(self, program: str) -> str:
        """The base URL of a program's status."""
        if (url := self.entry(f"status.urls.{program}")) is not None:
            return self.value(url)
        return StatusConfig(*read_listen(self.mapping({"listen": self.listen(program)}))).own_url

    def _derived(self, label: str, of: Entry | None, text: str, key: str) -> Entry:
        if of is None:
            raise ValueError(f"{label} is derived from {key}, which is neither in the file nor has a default")
        return Entry(label, text_node(text), of.line, f"{key}, {of.source}")

    def _raw(self, entry: Entry | None) -> str:
        self.value(entry)  # Refuses what is not a text.
        return str(entry.node.value) if entry is not None else ""

    def _section(self, path: str) -> YamlMapping | None:
        above, _, name = path.rpartition(".")
        parent = self._sections[above]
        if parent is None or name not in parent:
            return None
        line, node = parent.node(name)
        if isinstance(node, yaml.ScalarNode) and path in MAY_BE_OFF and node.value == _FALSE:
            self.off.add(path)
            return None
        if isinstance(node, yaml.ScalarNode) and path in SHORT:
            return self.mapping_at(path, line, node)
        return parent.mapping(name)

    def mapping_at(self, path: str, line: int, node: yaml.Node) -> YamlMapping:
        """The section that a single text stands for."""
        only = form_node({SHORT[path]: Entry(path, node, line, f"line {line}")})
        return YamlMapping(only, self.root.origin, path, line)


def _check_keys(path: str, section: YamlMapping) -> None:
    known = SECTIONS[path]
    for name in section:
        if name not in known:
            near = did_you_mean(name, known)
            said = [each for each in (*SECTIONS[""], *KEYS) if name in {each, each.rpartition(".")[2]}]
            advice = f"; it is said once, as {said[0]}" if said else f"; known keys: {', '.join(known)}"
            raise section.error(name, f"is not a known key{near or advice}")


def form_node(form: Form) -> LabelledNode:
    """The form as a mapping; what is ``None`` is left out."""
    labels, pairs = dict[str, str](), list[tuple[yaml.Node, yaml.Node]]()
    for name, entry in form.items():
        if isinstance(entry, Entry):
            labels[name] = entry.label
            pairs.append((text_node(name, entry.line), entry.node))
        elif entry is not None:
            node = form_node(entry)
            pairs.append((text_node(name, min((line + 1 for line in _lines(node)), default=1)), node))
    return LabelledNode(labels, pairs)


def _lines(node: LabelledNode) -> Iterator[int]:
    return (key.start_mark.line for key, _ in node.value)


def text_node(text: str, line: int = 1) -> yaml.ScalarNode:
    mark = yaml.Mark("", 0, line - 1, 0, None, 0)
    return yaml.ScalarNode(_TEXT, text, mark, mark)
