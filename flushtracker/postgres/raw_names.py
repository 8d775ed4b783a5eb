"""Names as the server stores them: it refuses a query for a name that it cannot convert to UTF-8."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from flushtracker.errors import PostgresError
from flushtracker.postgres.connection import Connection, is_untranslatable, rows, server_encoding
from flushtracker.wal.text_codecs import CODECS, UTF8

RAW: Final = "convert_to({}::text, getdatabaseencoding())"
"""An expression for the bytes of a name."""

_T = TypeVar("_T")


def raw_name(connection: Connection, name: bytes) -> str | None:
    """A name from its bytes; ``None`` if it has no equivalent in UTF-8, or none that is known here."""
    encoding = server_encoding(connection)
    codec = UTF8 if encoding == "UTF8" else CODECS.get(encoding, "ascii")
    try:
        return name.decode(codec)
    except UnicodeDecodeError:
        return None


def readable(read: Callable[[Sequence[int]], Iterable[_T]], oids: Sequence[int]) -> list[_T]:
    """What ``read`` finds for tables, by OID, without those with a text that the server cannot convert to UTF-8."""
    try:
        return list(read(oids)) if oids else []
    except PostgresError as error:
        if not is_untranslatable(error):
            raise
    if len(oids) == 1:
        return []
    middle = len(oids) // 2
    return [each for part in (oids[:middle], oids[middle:]) for each in readable(read, part)]


def readable_rows(connection: Connection, statement: str, oids: Sequence[int]) -> list[tuple[Any, ...]]:
    """The rows of a statement that takes OIDs; see :func:`readable`."""
    return readable(lambda some: rows(connection, statement, (list(some),)), oids)
