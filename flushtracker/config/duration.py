"""Durations as written in configuration files: ``60 seconds``."""

import re
from typing import Final

_UNIT_MS: Final = {
    "ms": 1,
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
}
_FORM: Final = re.compile(r"(?P<number>[0-9]{1,9}) +(?P<unit>ms|(?:millisecond|second|minute|hour|day)s?)")

DURATION_FORM: Final = 'a number above zero and a unit (ms, seconds, minutes, hours, days), such as "60 seconds"'
"""For error messages: what :func:`parse_duration_ms` accepts."""


def parse_duration_ms(text: str) -> int:
    """Parse a duration such as ``60 seconds`` into milliseconds; never zero.

    >>> parse_duration_ms("60 seconds"), parse_duration_ms("1 minute"), parse_duration_ms("500 ms")
    (60000, 60000, 500)

    Raises:
        ValueError: the text is not a whole number above zero, a space and a unit.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or int(found["number"]) == 0:
        raise ValueError(f"duration {text!r} is not {DURATION_FORM}")
    unit = found["unit"]
    return int(found["number"]) * _UNIT_MS[unit if unit in _UNIT_MS else unit.removesuffix("s")]
