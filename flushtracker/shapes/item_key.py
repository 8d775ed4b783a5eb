"""The text of a row's key, and its parts. Executors use this module, so it imports nothing that conditions need."""

from collections.abc import Iterable

from flushtracker.wal.changes import TableName


def quoted(text: str) -> str:
    """``text`` as a quoted SQL identifier, with inner double quotes doubled."""
    return '"' + text.replace('"', '""') + '"'


def table_prefix(table: TableName) -> str:
    """Schema and name as SQL writes them, both quoted."""
    return ".".join(map(quoted, table))


def key_values(values: Iterable[str | None]) -> str:
    """What follows the table in a key: each value quoted; NULL is a bare underscore."""
    return "".join(["/_" if value is None else "/" + quoted(value) for value in values])


def key_text(table: TableName, values: Iterable[str | None]) -> str:
    """The key of a row: the table's schema, its name and the key values, each quoted; NULL is a bare underscore.

    Different rows never get the same text, whatever their values contain.

    >>> print(key_text(("public", "users"), ["7"]))
    "public"."users"/"7"
    >>> print(key_text(("public", "order_items"), ['1/"2"', None]))
    "public"."order_items"/"1/""2""\"/_
    """
    return table_prefix(table) + key_values(values)
