"""The stored format of state: a version byte, then compact JSON. JSON is fast, readable and executes no code."""

import json
from typing import Any, Final

from flushtracker.errors import StateError
from flushtracker.wal.log_offset import LogOffset

JSON_VERSION: Final = b"\x01"
START_OVER: Final = (
    "restart capture, which resends everything unconfirmed, and start with a new checkpoint (with Kafka: --recover)"
)
"""What to do about a checkpoint that cannot be used."""


def pack(value: object) -> bytes:
    """Encode a value made of lists, mappings, strings, numbers and ``None``."""
    return JSON_VERSION + json.dumps(value, separators=(",", ":")).encode()


def unpack(packed: bytes) -> Any:
    """Decode the output of :func:`pack`; raises ``StateError`` if its version byte differs."""
    check_version(packed, JSON_VERSION)
    return json.loads(packed[1:])


def check_version(packed: bytes, readable: bytes) -> None:
    """Raise ``StateError`` unless ``packed`` begins with the version byte ``readable``."""
    version = packed[:1]
    if version != readable:
        raise StateError(
            f"the checkpoint's state has version {version.hex() or 'none'}, this job reads version {readable.hex()}; "
            f"use the release that wrote it, or {START_OVER}"
        )


def offset_to_json(offset: LogOffset | None) -> list[int] | None:
    return None if offset is None else [offset.tx_offset, offset.op_offset]


def offset_from_json(fields: list[int] | None) -> LogOffset | None:
    return None if fields is None else LogOffset(*fields)
