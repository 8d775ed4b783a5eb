"""LSNs: 64-bit WAL positions, an ``int`` in the program and ``16/B374D848`` in messages, logs and SQL."""

import re
from typing import Final

MAX_LSN: Final = 2**64 - 1

_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})", re.ASCII)


def parse_lsn(text: str) -> int:
    """Read PostgreSQL's text form; the inverse of :func:`format_lsn`.

    >>> parse_lsn("16/B374D848")
    97500059720

    Raises:
        ValueError: ``text`` is not two groups of one to eight hexadecimal digits around a slash.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"LSN {text!r} is not of the form 16/B374D848")
    return int(match[1], 16) << 32 | int(match[2], 16)


def format_lsn(lsn: int) -> str:
    """Write an LSN as PostgreSQL does; the inverse of :func:`parse_lsn`.

    >>> format_lsn(97500059720)
    '16/B374D848'

    Raises:
        ValueError: ``lsn`` does not fit in 64 bits.
    """
    if not 0 <= lsn <= MAX_LSN:
        raise ValueError(f"LSN {lsn} is outside 0 to {MAX_LSN}")
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
