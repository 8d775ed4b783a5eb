"""PostgreSQL servers in configuration files: how to connect, and how to read tables for snapshots."""

from dataclasses import dataclass
from typing import Final

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.strict_yaml import YamlMapping

_LOCK_TIMEOUT_MS: Final = 10_000
_MOST_ATTEMPT_MS: Final = 5 * 3_600_000
"""An hour less than the shape log's retention: upkeep deletes older files that are not committed yet."""
_SECRETS: Final = ("password", "sslpassword")


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


def read_tables(postgres: YamlMapping) -> TablesConfig:
    """The section ``postgres``; raises ``ConfigError``."""
    postgres.allow("connection", "publication", "connections", "lock_timeout", "statement_timeout", "max_attempt")
    return TablesConfig(
        read_connection(postgres),
        postgres.text("publication").value,
        postgres.integer("connections", default=2, at_least=1),
        postgres.optional_duration_ms("lock_timeout") or _LOCK_TIMEOUT_MS,
        postgres.optional_duration_ms("statement_timeout"),
        _max_attempt_ms(postgres),
    )


def _max_attempt_ms(postgres: YamlMapping) -> int:
    found = postgres.optional_duration_ms("max_attempt") or _MOST_ATTEMPT_MS
    if found > _MOST_ATTEMPT_MS:
        raise postgres.wrong("max_attempt", "at most 5 hours: older files that are not in the log yet are deleted")
    return found


def read_connection(postgres: YamlMapping) -> SecretOptions:
    """The mapping ``connection`` of libpq's own keywords; raises ``ConfigError`` for a secret in plain text."""
    connection = postgres.mapping("connection")
    for name in _SECRETS:
        if name in connection and "${" not in connection.text(name, empty=True).shown:
            raise connection.error(name, "is in plain text; use a variable, ${NAME}, or a passfile")
    return SecretOptions(connection.scalars())
