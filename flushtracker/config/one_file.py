"""``flushtracker.yaml``, the configuration of all programs: its sections with their defaults, and what is derived."""

from pathlib import Path
from typing import Final

import yaml

from flushtracker.config.config_keys import KEYS, MAY_BE_OFF, PROGRAMS, SECTIONS, SHORT
from flushtracker.config.places import BROKERS_FORM, STORAGE_FORM, parse_brokers, parse_storage
from flushtracker.config.status_config import StatusConfig, is_status_url, read_listen
from flushtracker.config.storage_path import nested_path
from flushtracker.config.streams import FLUSHES, FRAGMENTS, SHAPE_CHANGES, SHAPES
from flushtracker.config.strict_yaml import YamlMapping, read_yaml
from flushtracker.config.yaml_tree import compose
from flushtracker.errors import ConfigError, did_you_mean

DEFAULT_CONFIG: Final = "flushtracker.yaml"
CONFIG_VARIABLE: Final = "FLUSHTRACKER_CONFIG"
TABLES: Final = ("acks", "dead_letters", "log", "log_shapes")
"""The folders of tables below ``storage``."""
STATUS_PORT_VARIABLE: Final = "FLUSHTRACKER_STATUS_PORT"
"""Has the first port instead of one of 0, for all programs of `flushtracker up`, which sets it."""
JOBS: Final = ("track", "write")
"""The programs with a checkpoint."""
AVAILABLE_NOW: Final = "available_now"
_STREAMS: Final = (FRAGMENTS, FLUSHES, SHAPES, SHAPE_CHANGES)
_MAP: Final = "tag:yaml.org,2002:map"
_FALSE: Final = "false"
_MOST_PORT: Final = 65_535 - len(PROGRAMS) + 1


class OneFile:
    """The file, with all its keys checked; raises :class:`ConfigError` naming the file, the line and the key.

    A program requires only the keys that it reads. ``lines`` has those that the file itself has, by path.
    """

    def __init__(self, root: YamlMapping) -> None:
        if root.has_path("shapes[]"):
            raise ConfigError(f"{root.file} is a list of shapes, not a configuration")
        self.root = root
        self.off: set[str] = set()
        """The programs that the file has not, and ``status`` if it is off."""
        self.lines: dict[str, int] = {}
        self._sections = {"": root}
        for path in sorted(filter(None, SECTIONS), key=lambda path: path.count(".")):
            self._sections[path] = self._section(path)
        for path, section in self._sections.items():
            _check_keys(path, section)
            self.lines |= {f"{path}.{name}".lstrip("."): line for name, line in section.lines.items()}
        for key in KEYS.values():
            if key.default is not None and key.path not in self.lines:
                self._sections[key.section].fill(key.name, compose(key.default, root.origin))
        self.has_files = "files" in root
        """Whether the streams are files, which capture does not write, and snapshots do not have."""
        if self.has_files:
            if "kafka" in root:
                raise root.error("files", f"is used instead of kafka, which is on line {self.lines['kafka']}")
            self.off |= {"capture", "snapshot", "sink"}

    def section(self, path: str) -> YamlMapping:
        """A section with its defaults, also if the file lacks it; raises ``ConfigError`` if it is required."""
        if self.lacks(path):
            raise self.root.error(path, "is missing")
        return self._sections[path]

    def lacks(self, path: str) -> bool:
        """Whether the file does not have this section, and it has a required key."""
        needs = any(key.section == path and key.is_required for key in KEYS.values())
        return needs and path != "" and path not in self.lines

    def source(self, path: str) -> str:
        """Where the value of a key is from."""
        return f"line {self.lines[path]}" if path in self.lines else "default"

    def options(self, *paths: str) -> dict[str, str]:
        """The options at these keys together; a later one replaces what an earlier one has."""
        found: dict[str, str] = {}
        for path in paths:
            options = self.section(KEYS[path].section).optional_mapping(KEYS[path].name)
            found |= {} if options is None else options.scalars()
        return found

    @property
    def brokers(self) -> str:
        """The brokers as Kafka's clients name them; raises ``ConfigError``."""
        kafka = self.section("kafka")
        try:
            return parse_brokers(kafka.text("bootstrap_servers").value)
        except ValueError:
            raise kafka.wrong("bootstrap_servers", BROKERS_FORM) from None

    def topic(self, stream: str) -> str:
        return f"{self.section('kafka').topic_name('topic_prefix')}.{stream}"

    def stream_folder(self, stream: str) -> str:
        """A folder below ``files``."""
        return _below(self.section("files").text("path").value, stream)

    def place(self, name: str) -> str:
        """A folder below ``storage``; raises ``ConfigError``."""
        storage = self.section("storage")
        try:
            return _below(parse_storage(storage.text("path").value), name)
        except ValueError:
            raise storage.wrong("path", STORAGE_FORM) from None

    def checkpoint(self, job: str) -> str:
        own = self.section(job).optional_text("checkpoint")
        return self.place(f"checkpoints/{job}") if own is None else own.value

    def require_distinct_places(self) -> None:
        """Refuse tables, checkpoints and streams in each other's folders; raises ``ConfigError``."""
        places = {name: self.place(name) for name in TABLES}
        places |= {f"{job}.checkpoint": self.checkpoint(job) for job in JOBS}
        if self.has_files:
            places |= {f"files.path/{stream}": self.stream_folder(stream) for stream in _STREAMS}
        if (found := nested_path(places)) is not None:
            label, fact = found
            line = self.lines.get(label) or self.lines["files" if label.startswith("files") else "storage"]
            raise self.root.origin.error(line, f"{label} {fact}")

    @property
    def takes_snapshots(self) -> bool:
        """Whether ``write`` takes the snapshots."""
        return self.section("write").choice("snapshot", "auto", "manual") == "auto" and not self.has_files

    @property
    def publishes_snapshots(self) -> bool:
        """Whether ``snapshot`` publishes rows for writers of other storages."""
        return self.section("snapshot").choice("into", "log", "kafka") == "kafka"

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that run all the time, in the order of their ports."""
        runs = self.section("snapshot").text("trigger").value != AVAILABLE_NOW and (
            not self.takes_snapshots or self.publishes_snapshots or "write" in self.off
        )
        has = {"snapshot": runs, "sink": not self.lacks("sink")}
        return tuple(name for name in PROGRAMS if name not in self.off and has.get(name, True))

    def status(self, program: str) -> StatusConfig | None:
        """Where a program serves its status, and those of the others; ``None`` if it serves none."""
        if "status" in self.off:
            return None
        others = (name for name in self.programs if name != program)
        peers = tuple(self.status_url(name) for name in others if self._has_status_url(name))
        return StatusConfig(*self._listen(program), peers)

    def status_url(self, program: str) -> str:
        """The base URL of a program's status, without a last slash."""
        urls = self.section("status.urls")
        if program not in urls:
            return StatusConfig(*self._listen(program)).own_url
        url = urls.text(program)
        if "@" in url.value:  # It may contain a password, so it is not shown.
            raise urls.error(program, "has credentials, which a status does not need")
        if not is_status_url(url.value):
            raise urls.error(program, f"is {url}, which is not a URL such as http://127.0.0.1:9465")
        return url.value.rstrip("/")

    def _has_status_url(self, program: str) -> bool:
        return program in self.section("status.urls") or self._listen(program)[1] > 0

    def _listen(self, program: str) -> tuple[str, int]:
        status = self.section("status")
        host, port = read_listen(status)
        if port == 0 and (chosen := self.root.origin.environ.get(STATUS_PORT_VARIABLE)):
            if not chosen.isdecimal():
                raise ConfigError(f"the environment variable {STATUS_PORT_VARIABLE} is not a port")
            port = int(chosen)
        if port > _MOST_PORT:
            raise status.wrong("listen", f"a port of at most {_MOST_PORT}: the programs have the next five, too")
        return host, port + PROGRAMS.index(program) if port else 0

    def _section(self, path: str) -> YamlMapping:
        above, _, name = path.rpartition(".")
        parent = self._sections[above]
        if name not in parent:
            return YamlMapping(yaml.MappingNode(_MAP, []), self.root.origin, path, 1)
        line, node = parent.node(name)
        if isinstance(node, yaml.ScalarNode) and path in MAY_BE_OFF and node.value == _FALSE:
            self.off.add(path)
            return YamlMapping(yaml.MappingNode(_MAP, []), self.root.origin, path, line)
        if isinstance(node, yaml.ScalarNode) and path in SHORT:
            key = yaml.ScalarNode(node.tag, SHORT[path], node.start_mark)
            return YamlMapping(yaml.MappingNode(_MAP, [(key, node)]), self.root.origin, path, line)
        return parent.mapping(name)


def read_config(path: Path) -> OneFile:
    """Read the configuration of all programs; raises ``ConfigError``."""
    return OneFile(read_yaml(path))


def read_program(path: Path, program: str) -> OneFile:
    """Read it for one of the programs; raises ``ConfigError``, also if the file says that there is no such program."""
    file = read_config(path)
    if program in file.off and file.has_files:
        raise file.root.error("files", f"is used instead of kafka, which `flushtracker {program}` needs")
    if program in file.off:
        raise file.root.error(program, "is false: this configuration has no such program")
    file.require_distinct_places()
    return file


def _check_keys(path: str, section: YamlMapping) -> None:
    known = SECTIONS[path]
    for name in section:
        if name not in known:
            near = did_you_mean(name, known)
            said = [each for each in (*SECTIONS[""], *KEYS) if name in {each, each.rpartition(".")[2]}]
            advice = f"; it is said once, as {said[0]}" if said else f"; known keys: {', '.join(known)}"
            raise section.error(name, f"is not a known key{near or advice}")


def _below(folder: str, name: str) -> str:
    return f"{folder}{'' if folder.endswith('/') else '/'}{name}"
