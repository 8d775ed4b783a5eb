"""``connection_uri``: options of libpq as one URI, for a configuration file, without secrets."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

_HOST: Final = re.compile(r"[A-Za-z0-9_.-]+")
_PORT: Final = re.compile("[0-9]+")
SECRETS: Final = ("password", "sslpassword")


def connection_uri(options: Mapping[str, str]) -> str:
    """A URI from which libpq reads the same options, apart from :data:`SECRETS`, which are left out.

    >>> connection_uri({"host": "db.internal", "user": "capture", "dbname": "app", "password": "x"})
    'postgresql://capture@db.internal/app'
    >>> connection_uri({"host": "/run/pg,db", "port": "5433,5432", "dbname": "my app", "sslmode": "verify-full"})
    'postgresql:///my%20app?host=%2Frun%2Fpg%2Cdb&port=5433%2C5432&sslmode=verify-full'
    """
    left = {name: value for name, value in options.items() if name not in SECRETS}
    user = f"{quote(left.pop('user'), safe='')}@" if left.get("user") else ""
    server = ""
    if _HOST.fullmatch(left.get("host", "")) and _PORT.fullmatch(left.get("port", "0")):
        server = left.pop("host")
        server += f":{left.pop('port')}" if "port" in left else ""
    database = f"/{quote(left.pop('dbname'), safe='')}" if left.get("dbname") else "/" if not server else ""
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in left.items())
    return f"postgresql://{user}{server}{database}{'?' + query if query else ''}"
