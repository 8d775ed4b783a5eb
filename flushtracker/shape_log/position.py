"""``Position``: what a follower of a shape's log stores, and where it continues.

An offset alone is not enough. If a snapshot is taken again, or the log is folded, changes after the offset may be
missing from the log because the rows at its beginning already contain them. Whether the follower has those rows depends
on the snapshot attempt that it started from. Offsets of different sources cannot be compared, so the source is
included, too.
"""

import re
from dataclasses import dataclass
from typing import Final

from flushtracker.errors import PositionError
from flushtracker.wal.lsn import format_lsn, parse_lsn

_VERSION: Final = "1"
_TEXT: Final = re.compile(r"1:([^:]+):([0-9]{1,19}):(.+)", re.ASCII | re.DOTALL)
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Position:
    """How far a follower has read the log of a shape: all of it up to the end of the transaction at ``tx_offset``.

    ``tx_offset`` is 0 before the first transaction. ``attempt`` is that of the snapshot that the follower started from,
    0 without one. Programs store the text.

    >>> str(Position("7301/1/shapes", 23997288, 7))
    '1:0/16E2B68:7:7301/1/shapes'
    >>> Position.parse("1:0/16E2B68:7:7301/1/shapes")
    Position(source='7301/1/shapes', tx_offset=23997288, attempt=7)
    """

    source: str
    tx_offset: int
    attempt: int

    @classmethod
    def parse(cls, text: str) -> "Position":
        version, colon, _ = text.partition(":")
        if colon and version.isascii() and version.isdigit() and version != _VERSION:
            raise PositionError(
                f"position {text[:_SHOWN]!r} has version {version}, and this release reads version {_VERSION}; read it "
                "with the release that wrote it, or read the shape again from its beginning"
            )
        match, problem = _TEXT.fullmatch(text), ""
        if match is not None:
            try:
                return cls(match[3], parse_lsn(match[1]), int(match[2]))
            except ValueError as error:
                problem = f": {error}"
        raise PositionError(
            f"position {text[:_SHOWN]!r} is not of the form 1:LSN:ATTEMPT:SOURCE{problem}; continue from one that a "
            "read has returned, or read the shape again from its beginning"
        )

    def __str__(self) -> str:
        return f"{_VERSION}:{format_lsn(self.tx_offset)}:{self.attempt}:{self.source}"
