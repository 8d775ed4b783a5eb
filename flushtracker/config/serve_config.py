"""The configuration of the server as frozen dataclasses."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flushtracker.config.one_file import OneFile, read_program
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.status_config import StatusConfig, read_listen
from flushtracker.config.streams import SHAPE_CHANGES
from flushtracker.config.strict_yaml import YamlMapping, YamlText
from flushtracker.config.table_names import TABLE_FORM, parse_table
from flushtracker.config.write_config import LogConfig, read_log

_ORIGIN: Final = re.compile(r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_SHORTEST_SECRET: Final = 8
_MOST_CONNECTIONS: Final = 1_000_000
_MOST_READS: Final = 64
_MOST_DEFINITIONS: Final = 10_000
_MOST_SUBSET_ROWS: Final = 1_000_000
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
    """All of it. ``source``: whose shapes are served, if several sources have the same ones; ``None`` for any.

    ``on_demand``: tables, as (schema, name). Any definition on them that a shape contains is served, at most
    ``on_demand_definitions`` at once. ``tail`` is ``None`` if clients get changes from the log alone.
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
    """Read the configuration for ``flushtracker serve``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    file = read_program(path, "serve")
    serve, cache, subsets = (file.section(each) for each in ("serve", "serve.cache", "serve.subsets"))
    source, poll_ms = serve.optional_text("source"), serve.duration_ms("poll")
    if not _LEAST_POLL_MS <= poll_ms <= _MOST_POLL_MS:
        raise serve.wrong("poll", f"a time from {_LEAST_POLL_MS} ms to {_MOST_POLL_MS} ms")
    return ServeConfig(
        sink=read_log(file),
        http=_http(serve),
        cache=CacheConfig(cache.optional_bytes("memory") or 0, cache.optional_bytes("disk") or 0),
        source=None if source is None else source.value,
        poll_ms=poll_ms,
        reads=serve.integer("reads", at_least=1, at_most=_MOST_READS),
        on_demand=frozenset(_table(serve, text) for text in serve.optional_texts("on_demand") or ()),
        on_demand_definitions=serve.integer("on_demand_definitions", at_least=1, at_most=_MOST_DEFINITIONS),
        subsets=SubsetRules(
            subsets.integer("rows", at_least=1, at_most=_MOST_SUBSET_ROWS),
            has_text_in_bytes=subsets.choice("text_order", "refused", "bytes") == "bytes",
        ),
        status=file.status("serve"),
        tail=_tail(file) if serve.optional_boolean("tail") else None,
    )


def _table(serve: YamlMapping, text: YamlText) -> tuple[str, str]:
    try:
        return parse_table(text.value)
    except ValueError:
        # The cause is dropped because it could show a variable's value.
        raise serve.error("on_demand", f"lists {text}, not a table {TABLE_FORM}") from None


def _http(serve: YamlMapping) -> HttpConfig:
    secret = serve.optional_text("secret")
    # The value is not shown: it is a secret, however short.
    if secret is not None and len(secret.value) < _SHORTEST_SECRET:
        raise serve.error("secret", f"has fewer than {_SHORTEST_SECRET} characters; take a longer one, at random")
    if secret is not None and not secret.value.isprintable():
        raise serve.error("secret", "has characters that cannot be printed, such as a line break")
    return HttpConfig(
        *read_listen(serve),
        secret=None if secret is None else secret.value,
        allow_origins=_origins(serve),
        hosts=_hosts(serve),
        connections=serve.integer("connections", at_least=1, at_most=_MOST_CONNECTIONS),
        allow_headers=_headers(serve),
    )


def _origins(serve: YamlMapping) -> tuple[str, ...]:
    texts = serve.optional_texts("allow_origins") or ()
    for text in texts:
        is_alone = text.value == ANY_ORIGIN and len(texts) == 1
        if not is_alone and not _ORIGIN.fullmatch(text.value):
            raise serve.error("allow_origins", f'lists {text}, not an origin such as https://app.example, or "*" alone')
    return tuple(text.value.lower() for text in texts)


def _headers(serve: YamlMapping) -> tuple[str, ...]:
    texts = serve.optional_texts("allow_headers")
    if texts is None:
        return _ALLOWED_HEADERS
    for text in texts:
        is_alone = text.value == ANY_HEADER and len(texts) == 1
        if not is_alone and not _HEADER.fullmatch(text.value):
            raise serve.error("allow_headers", f'lists {text}, not the name of a header, or "*" alone')
    return tuple(dict.fromkeys((*_ALLOWED_HEADERS, *(text.value.lower() for text in texts))))


def _hosts(serve: YamlMapping) -> tuple[str, ...]:
    texts = serve.optional_texts("hosts") or ()
    for text in texts:
        if not _HOST.fullmatch(text.value):
            raise serve.error("hosts", f"lists {text}, not a host's name without a port")
    return tuple(text.value.lower() for text in texts)


def _tail(file: OneFile) -> TailConfig:
    return TailConfig(
        bootstrap_servers=file.brokers,
        shape_changes=file.topic(SHAPE_CHANGES),
        options=SecretOptions(file.options("kafka.options")),
        memory_bytes=file.section("serve").optional_bytes("tail_memory") or 0,
    )
