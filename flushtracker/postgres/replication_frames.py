"""The frames of a replication stream: decodes WAL data and keepalives, and encodes standby status updates.

A frame is one CopyData message, described in PostgreSQL's manual under "Streaming Replication Protocol". All integers
are big-endian.
"""

from struct import Struct
from typing import Final, TypeAlias

from flushtracker.errors import DecodeError
from flushtracker.wal.value import value

_XLOG_DATA: Final = Struct(">cQQq")
_read_xlog_data: Final = _XLOG_DATA.unpack_from
_HEADER_BYTES: Final = _XLOG_DATA.size
_KEEPALIVE: Final = Struct(">cQqB")
_STATUS_UPDATE: Final = Struct(">cQQQqB")
_MICROSECONDS_TO_2000: Final = 946_684_800_000_000


@value(frozen=True, slots=True)
class XLogData:
    """One message of the output plugin, and its WAL position."""

    wal_lsn: int
    data: bytes


@value(frozen=True, slots=True)
class Keepalive:
    """The server has sent everything up to ``wal_end``; ``reply_requested`` if it wants a reply at once."""

    wal_end: int
    reply_requested: bool


Frame: TypeAlias = XLogData | Keepalive


def decode_frame(frame: bytes) -> Frame:
    """Decode one frame; raises ``DecodeError`` if it is neither WAL data nor a keepalive."""
    kind = frame[:1]
    if kind == b"w" and len(frame) >= _HEADER_BYTES:
        # In a logical stream the start and end positions are the same.
        return XLogData(_read_xlog_data(frame)[1], frame[_HEADER_BYTES:])
    if kind == b"k" and len(frame) == _KEEPALIVE.size:
        _, wal_end, _, reply = _KEEPALIVE.unpack(frame)
        return Keepalive(wal_end, reply != 0)
    raise DecodeError(
        f"a replication stream frame of type 0x{kind.hex()} and {len(frame)} bytes is neither WAL data nor a "
        "keepalive; connect to a PostgreSQL server directly"
    )


def is_message_of_a_role(frame: bytes) -> bool:
    """Whether a frame has a logical message of pgoutput, whose content is not needed."""
    return frame[:1] == b"w" and frame[_HEADER_BYTES : _HEADER_BYTES + 1] == b"M"


def encode_status_update(*, written_lsn: int, flushed_lsn: int, now_us: int, reply_requested: bool) -> bytes:
    """The bytes of a standby status update; ``now_us`` counts from 1970.

    ``flushed_lsn`` becomes the slot's ``confirmed_flush_lsn``: the server resends what commits at or above it.
    """
    clock = now_us - _MICROSECONDS_TO_2000
    return _STATUS_UPDATE.pack(b"r", written_lsn, flushed_lsn, flushed_lsn, clock, int(reply_requested))
