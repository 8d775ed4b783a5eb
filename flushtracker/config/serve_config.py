"""The configuration of the server: ``conf/serve.yaml`` as frozen dataclasses."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flushtracker.config.file_kinds import SERVE, read_kind
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.status_config import StatusConfig, read_listen, read_status
from flushtracker.config.storage_config import read_storage
from flushtracker.config.storage_path import require_distinct_paths
from flushtracker.config.streams import SHAPE_CHANGES
from flushtracker.config.strict_yaml import YamlMapping, YamlText
from flushtracker.config.table_names import TABLE_FORM, parse_table
from flushtracker.config.transport import read_topic
from flushtracker.config.units import BYTES_FORM, parse_bytes
from flushtracker.config.write_config import LogConfig, read_log_sink

_ORIGIN: Final = re.compile(r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_SHORTEST_SECRET: Final = 8
_MOST_CONNECTIONS: Final = 1_000_000
_MOST_READS: Final = 64
_MOST_DEFINITIONS: Final = 10_000
_MOST_SUBSET_ROWS: Final = 1_000_000
_BYTES: Final = "bytes"
_TEXT_ORDERS: Final = ("refused", _BYTES)
_LEAST_POLL_MS: Final = 50
_MOST_POLL_MS: Final = 10_000
ANY_ORIGIN: Final = "*"
ANY_HEADER: Final = "*"
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'+.^_`|~-]+", re.ASCII)
_ALLOWED_HEADERS: Final = ("authorization", "cache-control", "content-type", "if-none-match")


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """``listen_port`` 0 takes any free port. ``allow_origins`` are for CORS, or only ``*``.

    ``allow_headers`` are what pages of these may send besides a browser's own headers, or only ``*``.

    ``hosts`` are additional names by which the server may be addressed if it listens on loopback.
    """

    listen_host: str
    listen_port: int
    secret: str | None = field(default=None, repr=False)
    allow_origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    connections: int = 10_000
    allow_headers: tuple[str, ...] = _ALLOWED_HEADERS

    @property
    def listen(self) -> str:
        return StatusConfig(self.listen_host, self.listen_port).listen


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """``memory_bytes`` is for parts of logs in memory, ``disk_bytes`` for data in temporary files."""

    memory_bytes: int = 64_000_000
    disk_bytes: int = 2_000_000_000


@dataclass(frozen=True, slots=True)
class TailConfig:
    """Where the hot tail is read. ``options`` are librdkafka's; ``memory_bytes`` is for the tails of all shapes."""

    bootstrap_servers: str
    shape_changes: str
    options: SecretOptions = field(default_factory=SecretOptions)
    memory_bytes: int = 64_000_000


@dataclass(frozen=True, slots=True)
class SubsetRules:
    """``most_rows`` are for one answer. ``has_text_in_bytes``: texts are ordered by bytes, whatever their collation."""

    most_rows: int = 100_000
    has_text_in_bytes: bool = False


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The whole file. ``source``: whose shapes are served, if several sources have the same ones; ``None`` for any.

    ``on_demand``: the tables of which any definition is served that a shape contains, as (schema, name), of at most
    ``on_demand_definitions`` at once.
    ``tail`` is ``None`` if clients get changes from the log alone.
    """

    sink: LogConfig
    http: HttpConfig
    cache: CacheConfig = CacheConfig()
    source: str | None = None
    poll_ms: int = 500
    reads: int = 2
    on_demand: frozenset[tuple[str, str]] = frozenset()
    on_demand_definitions: int = 1_000
    subsets: SubsetRules = SubsetRules()
    status: StatusConfig | None = None
    tail: TailConfig | None = None


def load_serve_config(path: Path) -> ServeConfig:
    """Read a configuration file of ``flushtracker serve``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    root = read_kind(path, SERVE)
    root.allow(
        "storage",
        "sink",
        "http",
        "cache",
        "source",
        "poll",
        "reads",
        "on_demand",
        "on_demand_definitions",
        "subsets",
        "status",
        "tail",
    )
    default = ServeConfig(LogConfig("", ""), HttpConfig("", 0))
    source = root.optional_text("source")
    poll_ms = root.optional_duration_ms("poll")
    if poll_ms is not None and not _LEAST_POLL_MS <= poll_ms <= _MOST_POLL_MS:
        raise root.wrong("poll", f"a time from {_LEAST_POLL_MS} ms to {_MOST_POLL_MS} ms")
    require_distinct_paths(root, [("sink", "log"), ("sink", "shapes")])
    return ServeConfig(
        sink=read_log_sink(root.mapping("sink"), read_storage(root)),
        http=_http(root.mapping("http")),
        cache=_cache(root.optional_mapping("cache")),
        source=None if source is None else source.value,
        poll_ms=poll_ms or default.poll_ms,
        reads=root.optional_integer("reads", at_least=1, at_most=_MOST_READS) or default.reads,
        on_demand=_on_demand(root),
        on_demand_definitions=root.optional_integer("on_demand_definitions", at_least=1, at_most=_MOST_DEFINITIONS)
        or default.on_demand_definitions,
        subsets=_subsets(root.optional_mapping("subsets")),
        status=read_status(root),
        tail=_tail(root.optional_mapping("tail")),
    )


def _on_demand(root: YamlMapping) -> frozenset[tuple[str, str]]:
    return frozenset(_table(root, text) for text in root.optional_texts("on_demand") or ())


def _table(root: YamlMapping, text: YamlText) -> tuple[str, str]:
    try:
        return parse_table(text.value)
    except ValueError:
        # The cause is dropped because it could show a variable's value.
        raise root.error("on_demand", f"lists {text}, not a table {TABLE_FORM}") from None


def _http(http: YamlMapping) -> HttpConfig:
    http.allow("listen", "secret", "allow_origins", "allow_headers", "hosts", "connections")
    secret = http.optional_text("secret")
    # The value is not shown: it is a secret, however short.
    if secret is not None and len(secret.value) < _SHORTEST_SECRET:
        raise http.error("secret", f"has fewer than {_SHORTEST_SECRET} characters; take a longer one, at random")
    if secret is not None and not secret.value.isprintable():
        raise http.error("secret", "has characters that cannot be printed, such as a line break")
    connections = http.optional_integer("connections", at_least=1, at_most=_MOST_CONNECTIONS)
    return HttpConfig(
        *read_listen(http),
        secret=None if secret is None else secret.value,
        allow_origins=_origins(http),
        hosts=_hosts(http),
        connections=connections or HttpConfig("", 0).connections,
        allow_headers=_headers(http),
    )


def _origins(http: YamlMapping) -> tuple[str, ...]:
    texts = http.optional_texts("allow_origins") or ()
    for text in texts:
        is_alone = text.value == ANY_ORIGIN and len(texts) == 1
        if not is_alone and not _ORIGIN.fullmatch(text.value):
            raise http.error("allow_origins", f'lists {text}, not an origin such as https://app.example, or "*" alone')
    return tuple(text.value.lower() for text in texts)


def _headers(http: YamlMapping) -> tuple[str, ...]:
    texts = http.optional_texts("allow_headers")
    if texts is None:
        return _ALLOWED_HEADERS
    for text in texts:
        is_alone = text.value == ANY_HEADER and len(texts) == 1
        if not is_alone and not _HEADER.fullmatch(text.value):
            raise http.error("allow_headers", f'lists {text}, not the name of a header, or "*" alone')
    return tuple(dict.fromkeys((*_ALLOWED_HEADERS, *(text.value.lower() for text in texts))))


def _hosts(http: YamlMapping) -> tuple[str, ...]:
    texts = http.optional_texts("hosts") or ()
    for text in texts:
        if not _HOST.fullmatch(text.value):
            raise http.error("hosts", f"lists {text}, not a host's name without a port")
    return tuple(text.value.lower() for text in texts)


def _cache(cache: YamlMapping | None) -> CacheConfig:
    default = CacheConfig()
    if cache is None:
        return default
    cache.allow("memory", "disk")
    return CacheConfig(
        _bytes(cache, "memory") or default.memory_bytes,
        _bytes(cache, "disk") or default.disk_bytes,
    )


def _subsets(subsets: YamlMapping | None) -> SubsetRules:
    default = SubsetRules()
    if subsets is None:
        return default
    subsets.allow("rows", "text_order")
    text_order = subsets.optional_text("text_order")
    if text_order is not None and text_order.value not in _TEXT_ORDERS:
        raise subsets.wrong("text_order", " or ".join(_TEXT_ORDERS))
    return SubsetRules(
        subsets.optional_integer("rows", at_least=1, at_most=_MOST_SUBSET_ROWS) or default.most_rows,
        has_text_in_bytes=text_order is not None and text_order.value == _BYTES,
    )


def _tail(tail: YamlMapping | None) -> TailConfig | None:
    if tail is None:
        return None
    tail.allow("bootstrap_servers", SHAPE_CHANGES, "options", "memory")
    options, default = tail.optional_mapping("options"), TailConfig("", "")
    return TailConfig(
        bootstrap_servers=tail.text("bootstrap_servers").value,
        shape_changes=read_topic(tail, SHAPE_CHANGES),
        options=SecretOptions(options.scalars() if options is not None else None),
        memory_bytes=_bytes(tail, "memory") or default.memory_bytes,
    )


def _bytes(section: YamlMapping, key: str) -> int | None:
    if key not in section:
        return None
    try:
        return parse_bytes(section.text(key).value)
    except ValueError:
        # The cause is dropped because it could show a variable's value.
        raise section.wrong(key, BYTES_FORM) from None
