"""PostgreSQL's dates, times and intervals as the values that Debezium's PostgreSQL connector sends.

``time.precision.mode=adaptive`` and ``interval.handling.mode=numeric``. The texts are those of ``DateStyle`` ISO and
``IntervalStyle`` postgres in UTC, as capture's connections have them. Each function raises ``ValueError`` for a text of
another type.
"""

import re
from collections.abc import Callable
from typing import Final

_DATE: Final = re.compile(r"(\d{4,})-(\d\d)-(\d\d)( BC)?")
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_ZONE: Final = re.compile(r"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?")
_INTERVAL_PART: Final = re.compile(r"([+-]?\d+) (year|mon|day)s?")
_INTERVAL_TIME: Final = re.compile(r"([+-]?)(\d+):(\d\d):(\d\d(?:\.\d+)?)$")
_DAY_US: Final = 86_400_000_000
_DAYS_PER_MONTH: Final = 365.25 / 12
_INFINITE_US: Final = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
_INFINITE_DAYS: Final = {"infinity": 2**31 - 1, "-infinity": -(2**31)}


def days(text: str) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, of any year that PostgreSQL has."""
    if text in _INFINITE_DAYS:
        return _INFINITE_DAYS[text]
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError("not a date")
    year, month, day = (int(part) for part in found.groups()[:3])
    year = 1 - year if found[4] else year
    # Years that begin in March, so that a leap day is the last of its year.
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1 - 719_468


def time_us(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("not a time")
    hour, minute, second = (int(part) for part in found.groups()[:3])
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((found[4] or "").ljust(6, "0"))


def timestamp_us(text: str) -> int:
    if text in _INFINITE_US:
        return _INFINITE_US[text]
    date, _, time = text.partition(" ")
    time, _, era = time.partition(" ")
    return days(f"{date} {era}".strip()) * _DAY_US + time_us(time)


def micros(text: str) -> int:
    return within_int64(timestamp_us(text))


def within_int64(number: int) -> int:
    """Java's nearest ``long``, because a timestamp or an interval may be greater."""
    return max(-(2**63), min(number, 2**63 - 1))


def millis(convert: Callable[[str], int], text: str) -> int:
    return convert(text) // 1_000


def _zone_us(text: str) -> int:
    found = _ZONE.fullmatch(text)
    if found is None:
        raise ValueError("not a time zone")
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    return (-1 if found[1] == "-" else 1) * ((hours * 60 + minutes) * 60 + seconds) * 1_000_000


def timestamptz(digits: int, text: str) -> str:
    """In UTC, with as many digits of a second as the column has."""
    if text in _INFINITE_US:
        return text
    found = re.search(r"[+-]\d\d(?::\d\d)*(?= BC$|$)", text)
    if found is None:
        raise ValueError("no time zone")
    us = timestamp_us(text[: found.start()] + text[found.end() :]) - _zone_us(found[0])
    day, rest = divmod(us, _DAY_US)
    second, fraction = f"{rest % 60_000_000:08d}"[:2], f"{rest % 1_000_000:06d}"[: 6 if digits < 0 else digits]
    time = f"{rest // 3_600_000_000:02d}:{rest // 60_000_000 % 60:02d}:{second}"
    return f"{_iso_date(day)}T{time}{'.' if fraction else ''}{fraction}Z"


def _iso_date(epoch_day: int) -> str:
    """The inverse of :func:`days`, with the years before 1 as ISO 8601 numbers them."""
    era, day = divmod(epoch_day + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day, year = day - (153 * month + 2) // 5 + 1, year + 400 * era + (month > 9)
    sign, width = ("-", 4) if year < 0 else ("+", 0) if year > 9_999 else ("", 4)
    return f"{sign}{abs(year):0{width}d}-{month - 9 if month > 9 else month + 3:02d}-{day:02d}"


def timetz(text: str) -> str:
    found = _ZONE.search(text)
    if found is None:
        raise ValueError("no time zone")
    us = (time_us(text[: found.start()]) - _zone_us(found[0])) % _DAY_US
    fraction = f"{us % 1_000_000:06d}".rstrip("0")
    time = f"{us // 3_600_000_000:02d}:{us // 60_000_000 % 60:02d}:{us // 1_000_000 % 60:02d}"
    return f"{time}{'.' if fraction else ''}{fraction}Z"


def interval(text: str) -> int:
    """Microseconds, with the average length of a month."""
    parts = {unit: int(number) for number, unit in _INTERVAL_PART.findall(text)}
    seconds = 0.0
    if (time := _INTERVAL_TIME.search(text)) is not None:
        sign = -1 if time[1] == "-" else 1
        seconds = sign * (int(time[2]) * 3600 + int(time[3]) * 60 + float(time[4]))
    if not parts and time is None:
        raise ValueError("not an interval")
    total = (parts.get("year", 0) * 12 + parts.get("mon", 0)) * _DAYS_PER_MONTH + parts.get("day", 0)
    return within_int64(round((total * 86_400 + seconds) * 1_000_000))
