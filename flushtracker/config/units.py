"""Sizes and durations with their units, as people write and read them: ``5 GB``, ``60 seconds``, ``10m``."""

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
_SIZE: Final = re.compile(rf"(?P<number>[0-9]{{1,15}}(?:\.[0-9]{{1,3}})?) *(?P<unit>{'|'.join(_UNIT_BYTES)})")
_SIZE_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")

BYTES_FORM: Final = (
    "a number above zero and a unit (B; kB, MB, GB, TB: powers of 1000; KiB, MiB, GiB, TiB: powers of 1024), "
    'such as "5 GB"'
)
"""For error messages: what :func:`parse_bytes` accepts."""

_SPELLINGS_OF_MS: Final = {
    1: ("ms", "millisecond", "milliseconds"),
    1_000: ("s", "second", "seconds"),
    60_000: ("m", "min", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_UNIT_MS: Final = {unit: ms for ms, units in _SPELLINGS_OF_MS.items() for unit in units}
_DURATION: Final = re.compile(rf"(?P<number>[0-9]{{1,9}}) *(?P<unit>{'|'.join(_UNIT_MS)})")
_DURATION_UNITS: Final = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0))

DURATION_FORM: Final = 'a number above zero and a unit (ms, seconds, minutes, hours, days), such as "60 seconds" or 10m'
"""For error messages: what :func:`parse_duration_ms` accepts."""


def parse_bytes(text: str) -> int:
    """Parse a size such as ``5 GB`` into bytes; never zero. 1 kB is 1000 bytes, unlike in PostgreSQL.

    >>> parse_bytes("5 GB"), parse_bytes("512MB"), parse_bytes("1.5 kB"), parse_bytes("1 KiB")
    (5000000000, 512000000, 1500, 1024)

    Raises:
        ValueError: the text is not a number above zero with a unit.
    """
    found = _SIZE.fullmatch(text.strip())
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
    for unit in _SIZE_UNITS:
        value /= 1000
        # 999.5 would be rounded to 1000.
        if abs(value) < 999.5 or unit == _SIZE_UNITS[-1]:
            break
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def parse_duration_ms(text: str) -> int:
    """Parse a duration such as ``60 seconds`` into milliseconds; never zero.

    >>> parse_duration_ms("60 seconds"), parse_duration_ms("1 minute"), parse_duration_ms("500 ms")
    (60000, 60000, 500)
    >>> parse_duration_ms("10m"), parse_duration_ms("2 h")
    (600000, 7200000)

    Raises:
        ValueError: the text is not a whole number above zero with a unit.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or int(found["number"]) == 0:
        raise ValueError(f"duration {text!r} is not {DURATION_FORM}")
    return int(found["number"]) * _UNIT_MS[found["unit"]]


def seconds_text(seconds: float) -> str:
    """A duration in human-readable form.

    >>> seconds_text(0.42), seconds_text(75), seconds_text(7200), seconds_text(200_000)
    ('0.4 s', '1.2 min', '2.0 h', '2.3 d')
    """
    for unit, size in _DURATION_UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
