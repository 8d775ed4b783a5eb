"""The stored format of state: a version byte, then compact JSON. JSON is fast, readable and executes no code."""

import json
from typing import Any, Final

from flushtracker.errors import StateError
from flushtracker.wal.log_offset import LogOffset

_VERSION: Final = b"\x01"


def pack(value: object) -> bytes:
    """Encode a value made of lists, mappings, strings, numbers and ``None``."""
    return _VERSION + json.dumps(value, separators=(",", ":")).encode()


def unpack(packed: bytes) -> Any:
    """Decode the output of :func:`pack`; raises ``StateError`` if its version byte differs."""
    if packed[:1] != _VERSION:
        raise StateError(
            f"the checkpoint's state has version {packed[:1].hex() or 'none'}, this job reads version "
            f"{_VERSION.hex()}; use the release that wrote it, or start with a new checkpoint and a resend"
        )
    return json.loads(packed[1:])


def offset_to_json(offset: LogOffset | None) -> list[int] | None:
    """Return an offset as two numbers; the inverse of :func:`offset_from_json`."""
    return None if offset is None else [offset.tx_offset, offset.op_offset]


def offset_from_json(fields: list[int] | None) -> LogOffset | None:
    """Read the output of :func:`offset_to_json`."""
    return None if fields is None else LogOffset(*fields)
