"""The text of a row's key, and its parts. Used on executors, so it must not import what conditions need."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from flushtracker.wal.changes import TableName

JOINED: Final = "*"
"""Follows the table in the keys of a shape on several tables, to keep its rows distinct from those of a simple shape.
"""

PARTITION: Final = r'^"(?:[^"]|"")*"\."(?:[^"]|"")*"/(?:[0-9]+|\*(?:/[0-9]+)?)(?=/)'
"""Matches the part of a key that names the row's partition, its table among several, or both; also used by Spark."""

JOINED_KEY: Final = r'^"(?:[^"]|"")*"\."(?:[^"]|"")*"/\*/'
"""The start of a key that names its table among several; also used by Spark."""

_PARTITION: Final = re.compile(PARTITION)


def quoted(text: str) -> str:
    """``text`` as a quoted SQL identifier, with inner double quotes doubled."""
    return '"' + text.replace('"', '""') + '"'


def sql_name(name: str) -> str:
    """``name`` as typed in SQL: quoted if it would be folded, or has other characters.

    >>> sql_name("region"), sql_name("Region")
    ('region', '"Region"')
    """
    return name if re.fullmatch("[a-z_][a-z0-9_$]*", name) else quoted(name)


def sql_table(table: TableName) -> str:
    """Schema and name as SQL writes them, both quoted."""
    return ".".join(map(quoted, table))


@lru_cache
def table_prefix(table: TableName) -> str:
    return sql_table(table).replace("/", "//")


def partition_prefix(table: TableName, partition: int) -> str:
    """The prefix of the keys of one partition's rows, by its OID, because names may be reused.

    >>> partition_of(partition_prefix(("public", "events"), 16403) + key_values(["7"]))
    '"public"."events"/16403'
    """
    return f"{table_prefix(table)}/{partition}"


def joined_prefix(table: TableName, partition: int | None = None) -> str:
    """The prefix of the keys of one table's rows, or of its partition's, in a shape on several tables.

    >>> partition_of(joined_prefix(("public", "projects")) + key_values(["7"]))
    '"public"."projects"/*'
    >>> partition_of(joined_prefix(("public", "events"), 16403) + key_values(["7"]))
    '"public"."events"/*/16403'
    """
    prefix = f"{table_prefix(table)}/{JOINED}"
    return prefix if partition is None else f"{prefix}/{partition}"


def partition_of(key: str) -> str | None:
    """The :func:`partition_prefix` or :func:`joined_prefix` of a row's key, ``None`` if it has neither."""
    found = _PARTITION.match(key)
    return None if found is None else found[0]


def key_values(values: Iterable[str | None]) -> str:
    """The part of a key after the table: each value between double quotes; NULL is a bare underscore."""
    return "".join(["/_" if value is None else '/"' + value.replace("/", "//") + '"' for value in values])


def key_text(table: TableName, values: Iterable[str | None]) -> str:
    """The key of a row: the table and the key's values, joined by slashes.

    Slashes within a part are doubled. No part is empty or begins or ends with a slash, so a single slash separates two
    parts, and different rows never get the same text.

    >>> print(key_text(("public", "users"), ["7"]))
    "public"."users"/"7"
    >>> print(key_text(("public", "users"), ["user/123", "org/456"]))
    "public"."users"/"user//123"/"org//456"
    >>> print(key_text(("public", "order_items"), ['1/"2', None]))
    "public"."order_items"/"1//"2"/_
    """
    return table_prefix(table) + key_values(values)
