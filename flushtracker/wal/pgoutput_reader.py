"""Reads the fields of one ``pgoutput`` message and checks each against the end of the message."""

from datetime import datetime, timedelta
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812  # a class, despite its lower-case name
from typing import Final

from flushtracker.errors import DecodeError
from flushtracker.wal.text_codecs import UTF8

U8: Final = Struct(">B")
I16: Final = Struct(">h")
I32: Final = Struct(">i")
U32: Final = Struct(">I")
U64: Final = Struct(">Q")
I64: Final = Struct(">q")

_EPOCH: Final = datetime(2000, 1, 1)  # noqa: DTZ001  UTC; naive, so that the text has no offset
_MICROSECOND: Final = timedelta(microseconds=1)
_EARLIEST_US: Final = (datetime(1, 1, 2) - _EPOCH) // _MICROSECOND  # noqa: DTZ001  likewise
_LATEST_US: Final = (datetime(9999, 12, 31) - _EPOCH) // _MICROSECOND - 1  # noqa: DTZ001  likewise
"""These fall into the years 1 to 9999 in every time zone."""


class MessageReader:
    """A read position in one message; each read advances it, and :meth:`error` describes what is wrong there."""

    __slots__ = ("_codec", "data", "name", "position")

    def __init__(self, data: bytes, name: str, position: int, codec: str = UTF8) -> None:
        self.data = data
        self.name = name
        self.position = position
        self._codec = codec

    def error(self, expected: str, position: int | None = None, found: str = "") -> DecodeError:
        """Return the error for finding something other than ``expected`` at ``position`` (default: the current one)."""
        if position is None:
            position = self.position
        rest = self.data[position : position + 1]
        if not found:
            found = f"0x{rest.hex()} and {len(self.data) - position - 1} more bytes" if rest else "the end"
        return DecodeError(
            f"pgoutput {self.name}: byte {position} of {len(self.data)} should be {expected}, found {found}; "
            "read the slot with the plugin pgoutput and proto_version 1"
        )

    def number(self, layout: Struct, expected: str) -> int:
        """Read a number; for a count or a length, which must not be negative, use :meth:`count`."""
        try:
            value: int = layout.unpack_from(self.data, self.position)[0]
        except StructError as error:
            raise self.error(expected) from error
        self.position += layout.size
        return value

    def count(self, layout: Struct, expected: str) -> int:
        position = self.position
        value = self.number(layout, expected)
        if value < 0:
            raise self.error(f"{expected}, not negative ({value})", position)
        return value

    def flags(self, expected: str, known: int) -> int:
        """Read one byte in which only the bits in ``known`` may be set."""
        value = self.number(U8, expected)
        if value & ~known:
            raise self.error(expected, self.position - 1)
        return value

    def lsn(self, expected: str) -> int:
        return self.number(U64, expected)

    def timestamp(self) -> str:
        """Read microseconds since 2000-01-01 UTC and return ISO 8601 text; any 64 bits are a time.

        A replication origin may set any commit time, even the infinities. A time that a reader in some time zone could
        not represent becomes the nearest one that it can.
        """
        return _timestamp_text(self.number(I64, "a commit timestamp"))

    def string(self, expected: str) -> str:
        """Read a name up to the next zero byte; bytes that the codec cannot decode become surrogates."""
        start = self.position
        end = self.data.find(0, start)
        if end < 0:
            raise self.error(f"{expected} that ends in a zero byte")
        self.position = end + 1
        return str(self.data[start:end], self._codec, "surrogateescape")

    def schema(self) -> str:
        # PostgreSQL sends an empty name for pg_catalog.
        return self.string("a schema name") or "pg_catalog"


@lru_cache(maxsize=1)
def _timestamp_text(microseconds: int) -> str:
    """Cached, because a transaction's Begin and Commit have the same timestamp."""
    held = min(max(microseconds, _EARLIEST_US), _LATEST_US)
    return (_EPOCH + timedelta(microseconds=held)).isoformat(timespec="microseconds") + "Z"
