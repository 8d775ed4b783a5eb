"""PostgreSQL's dates and times, parsed from text into numbers that compare as on the server.

``infinity`` lies outside all dates. Parsers raise ``ValueError``, which the caller completes with the table and the
column.
"""

import math
import re
from collections.abc import Callable
from datetime import date

_DATE = re.compile(r"([0-9]{4,7})-([0-9]{2})-([0-9]{2})( BC)?")
_TIMESTAMP = re.compile(
    r"(?P<day>[0-9]{4,7}-[0-9]{2}-[0-9]{2})"
    r"(?:[ T](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,6}))?)?)?"
    r"(?: ?(?P<offset>Z|[+-][0-9]{2}(?::?[0-9]{2}(?::[0-9]{2})?)?))?(?P<era> BC)?"
)
_TIME = re.compile(r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?")
INTERVAL = re.compile(
    r"(?:(?P<years>[+-]?[0-9]{1,10}) years?(?: (?!$)|$))?(?:(?P<months>[+-]?[0-9]{1,10}) mons?(?: (?!$)|$))?"
    r"(?:(?P<days>[+-]?[0-9]{1,10}) days?(?: (?!$)|$))?"
    r"(?:(?P<sign>[+-]?)(?P<hour>[0-9]{1,10}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,6}))?)?"
)
_INT4, _INT8 = 1 << 31, 1 << 63
# 4714-11-24 BC, 5874897-12-31 and 294276-12-31: the first date, the last date, and the last day of a timestamp.
_FIRST_DAY, _LAST_DAY, _LAST_TIMESTAMP_DAY = -1_721_425, 2_145_762_068, 107_482_102
_DAY_US = 86_400_000_000


def _days(text: str, *, before_christ: bool) -> int:
    """Days on the proleptic calendar. Years that ``datetime`` lacks are shifted by whole cycles of 400 years."""
    if not (match := _DATE.fullmatch(text)):
        raise ValueError("not a date")
    year = int(match[1])
    if year == 0:
        raise ValueError("there is no year 0")
    cycles, year_in_cycle = divmod(1 - year if before_christ else year, 400)
    days = date(2000 + year_in_cycle, int(match[2]), int(match[3])).toordinal() + (cycles - 5) * 146_097
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise ValueError("out of range")
    return days


def parse_date(text: str) -> int | float:
    """Microseconds at the start of the day, so that dates compare with timestamps."""
    if text.lower() in ("infinity", "-infinity"):
        return math.inf if text[0] != "-" else -math.inf
    return _days(text.removesuffix(" BC"), before_christ=text.endswith(" BC")) * _DAY_US


def offset_us(text: str) -> int:
    if text == "Z":
        return 0
    digits = text[1:].replace(":", "").ljust(6, "0")
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    if hours > 15 or minutes > 59 or seconds > 59:
        raise ValueError("no such offset")
    return (-1 if text[0] == "-" else 1) * (hours * 3600 + minutes * 60 + seconds) * 1_000_000


def timestamp_parser(*, with_time_zone: bool) -> Callable[[str], int | float]:
    def parse_timestamp(text: str) -> int | float:
        if text.lower() in ("infinity", "-infinity"):
            return math.inf if text[0] != "-" else -math.inf
        if not (match := _TIMESTAMP.fullmatch(text)):
            raise ValueError("not a timestamp")
        if (match["offset"] is not None) != with_time_zone:
            raise ValueError("an offset such as +00 is required" if with_time_zone else "an offset is not allowed")
        hour, minute, second = int(match["hour"] or 0), int(match["minute"] or 0), int(match["second"] or 0)
        if hour > 23 or minute > 59 or second > 59:
            raise ValueError("no such time of day")
        value = _days(match["day"], before_christ=match["era"] is not None) * _DAY_US
        if value > _LAST_TIMESTAMP_DAY * _DAY_US:
            raise ValueError("out of range")
        value += (hour * 3600 + minute * 60 + second) * 1_000_000 + int((match["fraction"] or "").ljust(6, "0"))
        return value - offset_us(match["offset"]) if with_time_zone else value

    return parse_timestamp


def parse_time(text: str) -> int:
    """Microseconds since midnight; 24:00:00 is a time of day of its own."""
    if not (match := _TIME.fullmatch(text)):
        raise ValueError("not a time")
    hour, minute, second, fraction = int(match[1]), int(match[2]), int(match[3] or 0), (match[4] or "").ljust(6, "0")
    value = (hour * 3600 + minute * 60 + second) * 1_000_000 + int(fraction)
    if minute > 59 or second > 59 or value > _DAY_US:
        raise ValueError("no such time of day")
    return value


def parse_interval(text: str) -> int | float:
    """An interval in microseconds as PostgreSQL compares it: a month has 30 days, and a day 24 hours.

    The text is that of ``IntervalStyle`` postgres, in which each part has its own sign.

    >>> parse_interval("1 mon") == parse_interval("29 days 24:00:00")
    True
    """
    if text.lower() in ("infinity", "-infinity"):
        return math.inf if text[0] != "-" else -math.inf
    months, days, time = interval_parts(text)
    return (months * 30 + days) * _DAY_US + time


def interval_parts(text: str) -> tuple[int, int, int]:
    """The months, days and microseconds of a finite interval."""
    match = INTERVAL.fullmatch(text)
    if not match or not text:
        raise ValueError("not an interval")
    months = 12 * int(match["years"] or 0) + int(match["months"] or 0)
    days = int(match["days"] or 0)
    time = (int(match["hour"] or 0) * 3600 + int(match["minute"] or 0) * 60 + int(match["second"] or 0)) * 1_000_000
    time += int((match["fraction"] or "").ljust(6, "0"))
    time = -time if match["sign"] == "-" else time
    if int(match["minute"] or 0) > 59 or int(match["second"] or 0) > 59:
        raise ValueError("no such time")
    if not (-_INT4 <= months < _INT4 and -_INT4 <= days < _INT4 and -_INT8 <= time < _INT8):
        raise ValueError("out of range")
    return months, days, time
