"""The text of a row's key, and what it is made of. Without the packages that conditions need: executors use it, too."""

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
