"""The PostgreSQL server: how to connect, and how to read tables for snapshots."""

import re
from dataclasses import dataclass
from typing import Final

import yaml

from flushtracker.config.config_keys import SECTIONS
from flushtracker.config.libpq_text import parse_options
from flushtracker.config.one_file import OneFile
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.strict_yaml import YamlMapping
from flushtracker.errors import ConfigError

_LOCK_TIMEOUT_MS: Final = 10_000
_MOST_ATTEMPT_MS: Final = 5 * 3_600_000
"""An hour less than the shape log's retention: upkeep deletes older files that are not committed yet."""
_SECRETS: Final = ("password", "sslpassword")
_SAME_SERVER: Final = ("host", "hostaddr", "port", "dbname", "service")
_VARIABLE: Final = re.compile(r"\$?\$\{\w+\}")


@dataclass(frozen=True, slots=True)
class TablesConfig:
    """The server to read.

    ``connections`` read in parallel, and one more holds the snapshot. ``lock_timeout_ms`` limits the wait for a table's
    lock, and ``statement_timeout_ms`` the reading of one range; ``None`` for no limit. ``max_attempt_ms`` limits how
    long one MVCC snapshot is held.
    """

    connection: SecretOptions
    publication: str
    connections: int = 2
    lock_timeout_ms: int = _LOCK_TIMEOUT_MS
    statement_timeout_ms: int | None = None
    max_attempt_ms: int = _MOST_ATTEMPT_MS


def read_tables(file: OneFile, *, connections: int) -> TablesConfig:
    """``snapshot``, for a program with so many connections by default; raises ``ConfigError``."""
    snapshot = file.section("snapshot")
    max_attempt_ms = snapshot.duration_ms("max_attempt")
    if max_attempt_ms > _MOST_ATTEMPT_MS:
        raise snapshot.wrong("max_attempt", "at most 5 hours: older files that are not in the log yet are deleted")
    return TablesConfig(
        read_connection(file, "snapshot"),
        file.section("capture").text("publication").value,
        snapshot.optional_integer("connections", at_least=1) or connections,
        snapshot.duration_ms("lock_timeout"),
        snapshot.optional_duration_ms("statement_timeout"),
        max_attempt_ms,
    )


def read_connection(file: OneFile, program: str = "capture") -> SecretOptions:
    """libpq's keywords for a program; raises ``ConfigError``, also for a secret in plain text."""
    server = _server(file.root)
    found = server.scalars()
    own = file.section("snapshot").optional_mapping("postgres") if program == "snapshot" else None
    if own is None:
        return SecretOptions(found)
    _require_variables(own)
    for name in _SAME_SERVER:
        if name in own and name in server and own.scalars()[name] != found[name]:
            line = server.lines[name]
            raise own.error(name, f"contradicts postgres.{name} on line {line}: all read one database")
    return SecretOptions({**found, **own.scalars()})


def _server(root: YamlMapping) -> YamlMapping:
    line, node = root.node("postgres")
    if not isinstance(node, yaml.ScalarNode):
        server = root.mapping("postgres")
        for name in server:
            if name in SECTIONS["capture"]:
                raise server.error(name, f"is not a keyword of libpq; set capture.{name}")
        _require_variables(server)
        return server
    text = root.text("postgres")
    is_literal = any(mark in _VARIABLE.sub("", text.shown) for mark in ("://", "="))
    try:
        # A variable's value in a URI needs no escapes: the URI is parsed before it is filled in.
        options = parse_options(text.shown if is_literal else text.value)
    except ConfigError as error:
        raise root.error("postgres", f"cannot be used: {error}") from None
    if not is_literal:
        # It all came from the environment, so no part of it is in plain text, or refers to a variable.
        return root.texts("postgres", {name: value.replace("${", "$${") for name, value in options.items()}, line)
    server = root.texts("postgres", options, line)
    _require_variables(server)
    return server


def _require_variables(options: YamlMapping) -> None:
    for name in _SECRETS:
        if name in options and "${" not in options.text(name, empty=True).shown:
            raise options.error(name, "is in plain text; use a variable, ${NAME}, or a passfile")
