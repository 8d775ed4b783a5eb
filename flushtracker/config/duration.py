"""Durations as people write and read them: ``60 seconds``, ``10m``."""

import re
from typing import Final

_SPELLINGS_OF_MS: Final = {
    1: ("ms", "millisecond", "milliseconds"),
    1_000: ("s", "second", "seconds"),
    60_000: ("m", "min", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_UNIT_MS: Final = {unit: ms for ms, units in _SPELLINGS_OF_MS.items() for unit in units}
_FORM: Final = re.compile(rf"(?P<number>[0-9]{{1,9}}) *(?P<unit>{'|'.join(_UNIT_MS)})")
_TEXT_UNITS: Final = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0))

DURATION_FORM: Final = 'a number above zero and a unit (ms, seconds, minutes, hours, days), such as "60 seconds" or 10m'
"""For error messages: what :func:`parse_duration_ms` accepts."""


def parse_duration_ms(text: str) -> int:
    """Parse a duration such as ``60 seconds`` into milliseconds; never zero.

    >>> parse_duration_ms("60 seconds"), parse_duration_ms("1 minute"), parse_duration_ms("500 ms")
    (60000, 60000, 500)
    >>> parse_duration_ms("10m"), parse_duration_ms("2 h")
    (600000, 7200000)

    Raises:
        ValueError: the text is not a whole number above zero with a unit.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or int(found["number"]) == 0:
        raise ValueError(f"duration {text!r} is not {DURATION_FORM}")
    return int(found["number"]) * _UNIT_MS[found["unit"]]


def seconds_text(seconds: float) -> str:
    """A duration in human-readable form.

    >>> seconds_text(0.42), seconds_text(75), seconds_text(7200), seconds_text(200_000)
    ('0.4 s', '1.2 min', '2.0 h', '2.3 d')
    """
    for unit, size in _TEXT_UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
