"""Sizes in bytes as people write and read them: ``5 GB``."""

import re
from decimal import Decimal
from typing import Final

_UNIT_BYTES: Final = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_FORM: Final = re.compile(rf"(?P<number>[0-9]{{1,15}}(?:\.[0-9]{{1,3}})?) *(?P<unit>{'|'.join(_UNIT_BYTES)})")
_TEXT_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")

BYTES_FORM: Final = (
    "a number above zero and a unit (B; kB, MB, GB, TB: powers of 1000; KiB, MiB, GiB, TiB: powers of 1024), "
    'such as "5 GB"'
)
"""For error messages: what :func:`parse_bytes` accepts."""


def parse_bytes(text: str) -> int:
    """Parse a size such as ``5 GB`` into bytes; never zero. As everywhere but in PostgreSQL, 1 kB is 1000 bytes.

    >>> parse_bytes("5 GB"), parse_bytes("512MB"), parse_bytes("1.5 kB"), parse_bytes("1 KiB")
    (5000000000, 512000000, 1500, 1024)

    Raises:
        ValueError: the text is not a number above zero with a unit.
    """
    found = _FORM.fullmatch(text.strip())
    size = 0 if found is None else int(Decimal(found["number"]) * _UNIT_BYTES[found["unit"]])
    if size == 0:
        raise ValueError(f"size {text!r} is not {BYTES_FORM}")
    return size


def bytes_text(count: int) -> str:
    """A number of bytes in human-readable form.

    >>> bytes_text(0), bytes_text(999), bytes_text(1_760_400), bytes_text(999_999)
    ('0 B', '999 B', '1.76 MB', '1.00 MB')
    """
    if abs(count) < 1000:
        return f"{count} B"
    value = float(count)
    for unit in _TEXT_UNITS:
        value /= 1000
        # 999.5 would be rounded to 1000.
        if abs(value) < 999.5 or unit == _TEXT_UNITS[-1]:
            break
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"
