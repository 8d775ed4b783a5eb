"""PostgreSQL's dates, times and intervals as the values that Debezium's PostgreSQL connector sends.

``time.precision.mode=adaptive`` and ``interval.handling.mode=numeric``. The texts are those of ``DateStyle`` ISO and
``IntervalStyle`` postgres in UTC, as capture's connections have them. Each function raises ``ValueError`` for a text of
another type.
"""

import re
from collections.abc import Callable
from datetime import date
from typing import Final

from flushtracker.shapes.where.time_values import (
    interval_parts,
    offset_us,
    parse_date,
    parse_time,
    timestamp_parser,
)

_ZONE: Final = re.compile(r"[+-][\d:]+$")
_DAY_US: Final = 86_400_000_000
_YEAR_2000: Final = date(2000, 1, 1).toordinal()
_YEAR_1970: Final = date(1970, 1, 1).toordinal()
"""Parsed dates and times are since the day before 0001-01-01, as Python's ordinals are."""
_DAYS_PER_MONTH: Final = 365.25 / 12
_INFINITE_US: Final = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
_INFINITE_DAYS: Final = {"infinity": 2**31 - 1, "-infinity": -(2**31)}
_LONGS: Final = {"infinity": 2**63 - 1, "-infinity": -(2**63)}
_TIMESTAMP: Final = timestamp_parser(with_time_zone=False)
_INSTANT: Final = timestamp_parser(with_time_zone=True)


def days(text: str) -> int:
    return _INFINITE_DAYS[text] if text in _INFINITE_DAYS else int(parse_date(text)) // _DAY_US - _YEAR_1970


def timestamp_us(text: str) -> int:
    return _INFINITE_US[text] if text in _INFINITE_US else int(_TIMESTAMP(text)) - _YEAR_1970 * _DAY_US


def micros(text: str) -> int:
    return _long(timestamp_us(text))


def _long(number: int) -> int:
    """Java's nearest ``long``, because a timestamp or an interval may be greater."""
    return max(-(2**63), min(number, 2**63 - 1))


def millis(convert: Callable[[str], int], text: str) -> int:
    return convert(text) // 1_000


def timestamptz(digits: int, text: str) -> str:
    """In UTC, with as many digits of a second as the column has."""
    if text in _INFINITE_US:
        return text
    day, rest = divmod(int(_INSTANT(text)), _DAY_US)
    fraction = f"{rest % 1_000_000:06d}"[: 6 if digits < 0 else digits]
    return f"{_iso_date(day)}T{_iso_time(rest)}{'.' if fraction else ''}{fraction}Z"


def _iso_time(us: int) -> str:
    return f"{us // 3_600_000_000:02d}:{us // 60_000_000 % 60:02d}:{us // 1_000_000 % 60:02d}"


def _iso_date(ordinal: int) -> str:
    """With the years before 1 as ISO 8601 numbers them. Years that ``datetime`` lacks are shifted by 400 years each."""
    cycles, day = divmod(ordinal - _YEAR_2000, 146_097)
    shifted = date.fromordinal(day + _YEAR_2000)
    year = shifted.year + 400 * cycles
    sign, width = ("-", 4) if year < 0 else ("+", 0) if year > 9_999 else ("", 4)
    return f"{sign}{abs(year):0{width}d}-{shifted.month:02d}-{shifted.day:02d}"


def timetz(text: str) -> str:
    found = _ZONE.search(text)
    if found is None:
        raise ValueError("no time zone")
    us = (parse_time(text[: found.start()]) - offset_us(found[0])) % _DAY_US
    fraction = f"{us % 1_000_000:06d}".rstrip("0")
    return f"{_iso_time(us)}{'.' if fraction else ''}{fraction}Z"


def interval(text: str) -> int:
    """Microseconds, with the average length of a month."""
    if text in _LONGS:
        return _LONGS[text]
    months, whole_days, us = interval_parts(text)
    return _long(round((months * _DAYS_PER_MONTH + whole_days) * _DAY_US) + us)
