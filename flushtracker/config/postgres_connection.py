"""The options of a connection to PostgreSQL in a configuration file: libpq's own keywords."""

from typing import Final

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.strict_yaml import YamlMapping

_SECRETS: Final = ("password", "sslpassword")


def read_connection(postgres: YamlMapping) -> SecretOptions:
    """The mapping ``connection``; raises ``ConfigError`` for a secret in plain text."""
    connection = postgres.mapping("connection")
    for name in _SECRETS:
        if name in connection and "${" not in connection.text(name, empty=True).shown:
            raise connection.error(name, "is in plain text; use a variable, ${NAME}, or a passfile")
    return SecretOptions(connection.scalars())
