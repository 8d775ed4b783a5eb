"""``connection_uri``: options of libpq as one URI, for a configuration file, with variables in place of secrets."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

_HOST: Final = re.compile(r"[A-Za-z0-9_.-]+")
_PORT: Final = re.compile("[0-9]+")
SECRETS: Final[Mapping[str, str]] = {"password": "PGPASSWORD", "sslpassword": "PGSSLPASSWORD"}
"""The options that are not written, and the variable that stands for each."""


def connection_uri(options: Mapping[str, str]) -> str:
    """A URI of printable ASCII characters without quotes, from which libpq reads the same options.

    It has a variable, ``${NAME}``, in place of each secret, and no other ``${``.

    >>> connection_uri({"host": "db.internal", "user": "capture", "dbname": "app", "password": "x"})
    'postgresql://capture:${PGPASSWORD}@db.internal/app'
    >>> connection_uri({"host": "/run/pg,db", "port": "5433,5432", "dbname": "my app", "sslmode": "verify-full"})
    'postgresql:///my%20app?host=%2Frun%2Fpg%2Cdb&port=5433%2C5432&sslmode=verify-full'
    """
    left = {name: _written(name, value) for name, value in options.items()}
    user = ""
    if left.get("user"):
        password = f":{left.pop('password')}" if left.get("password") else ""
        user = f"{left.pop('user')}{password}@"
    server = ""
    if _HOST.fullmatch(options.get("host", "")) and _PORT.fullmatch(options.get("port", "0")):
        server = left.pop("host")
        server += f":{left.pop('port')}" if "port" in left else ""
    database = f"/{left.pop('dbname')}" if left.get("dbname") else "/" if not server else ""
    query = "&".join(f"{name}={value}" for name, value in left.items())
    return f"postgresql://{user}{server}{database}{'?' + query if query else ''}"


def _written(name: str, value: str) -> str:
    return f"${{{SECRETS[name]}}}" if name in SECRETS and value else quote(value, safe="")
