"""Texts of values of every type that ``where`` supports: ordinary ones, edge values, and texts of equal values."""

from flushtracker.shapes.where import sql_values as sql

_INTEGERS = ["0", "1", "-1", "2", "3", "-7", "10", "100", "32767", "-32768", "10000", "9999"]
_NUMBERS = [
    *_INTEGERS, "0.0", "-0.00", "0.1", "0.10", "1.0", "1.50", "2.5", "-2.5", "3.333", "1e-7",
    "123456789012345678901234567890.5", "0.00000000000000000000000000000000000000012345", "9007199254740993",
    "16777217", "2147483648", "9223372036854775808", "-2147483648", "-9223372036854775808", "99999999.99",
    "10001", "NaN", "1e400", "-1e400", "1e-400", "123.45e5", "5e-324", "3.4028235677973366e38", "7e-46",
    "9" * 400 + ".5",
]  # fmt: skip
_FLOATS = [
    "0", "-0", "1", "-1", "0.1", "0.5", "1.5", "2.5", "16777216", "3", "NaN", "Infinity", "-Infinity", "1e-30",
    "1e30",
]  # fmt: skip
_TEXTS = [
    "", " ", "a", "A", "a ", " a", "ab", "aB", "abc", "b", "B", "k", "K", "i", "I", "%", "_", "\\", "a\\b", "50%",
    "a_b", "it's", "é", "É", "日本", "ß", "ſ", "ı", "\u0130", "K1", "a\u0130b", "\u212a",
    "\u212a1", "Σ", "ς", "null", "NULL", "1", "1.0",
    "a\nb", "!", "a!b", "ŉ", "ﬁ", "\U0001f600",
]  # fmt: skip
_DATES = [
    "2026-11-21", "2026-11-22", "0044-03-15 BC", "0001-01-01", "9999-12-31", "10000-01-01", "infinity",
    "-infinity", "2024-02-29", "1969-12-31", "4714-11-24 BC", "294277-01-01", "5874897-12-31",
]  # fmt: skip
_TIMES = ["00:00:00", "24:00:00", "12:30:00", "12:30:00.5", "23:59:59.999999", "00:00:00.000001"]
_TIMESTAMPS = [
    "2026-11-21 00:00:00", "2026-11-21 12:30:00.5", "0044-03-15 12:00:00 BC", "infinity", "-infinity",
    "2026-11-21 00:00:00.000001", "10000-01-01 00:00:00", "294276-12-31 23:59:59.999999",
    "4714-11-24 00:00:00 BC", "1969-12-31 23:59:59.999999",
]  # fmt: skip
_INTERVALS = [
    "00:00:00", "1 mon", "30 days", "720:00:00", "1 year", "12 mons", "360 days", "-1 mons", "1 day", "24:00:00",
    "-24:00:00", "1 day -24:00:00", "1 mon -30 days", "1 year 2 mons 3 days 04:05:06.789", "-1 days +02:03:00",
    "00:00:00.000001", "178000000 years", "infinity", "-infinity", "-00:00:00.5",
]  # fmt: skip
_UUIDS = [
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
]  # fmt: skip
_UUID_ARRAYS = ["{}", *(f"{{{each}}}" for each in _UUIDS), f"{{{_UUIDS[0]},NULL,{_UUIDS[1]}}}", "{NULL}"]
_INTEGER_ARRAYS = [
    "{}", "{1}", "{1,2}", "{2,1}", "{NULL}", "{1,NULL}", "{{1,2},{3,4}}", "[0:1]={1,2}", "{1,1}", "{100,-1,3}",
]  # fmt: skip
_TEXT_ARRAYS = [
    "{}", "{a}", "{a,b}", '{"a b",c}', '{NULL,"NULL"}', '{""}', '{"a\\"b","a\\\\b"}', "{é,日本}", '{"{}","a,b"}',
    "{null,a}",
]  # fmt: skip
LABELS = [
    "happy", "", "sad", "ok", "null", "NULL", " ok", "it's", 'a"b', "a,b", "{}", "50%", "\\", "é", "a", "A", "ab",
    "1", "K",
]  # fmt: skip
"""The labels of an enum, in its order."""
_LABEL_ARRAYS = [
    *("{}", "{sad}", "{sad,ok}", "{ok,sad}", '{NULL,"NULL"}', '{""}', '{"a\\"b","a,b"}', "{{a,A},{ab,a}}"),
    "{a,a}",
]
MOOD, WEATHER, MOODS, TEXT_DOMAIN, NUMBER_DOMAIN, REAL_DOMAIN, ARRAY_DOMAIN = range(16_384, 16_391)
"""Types that the server creates, under OIDs of its own."""
DOMAINS = {
    TEXT_DOMAIN: sql.TEXT, NUMBER_DOMAIN: sql.NUMERIC, REAL_DOMAIN: sql.FLOAT4, ARRAY_DOMAIN: 1007,
}  # fmt: skip
"""What each domain is over."""


def _in_utc(timestamp: str) -> str:
    if "infinity" in timestamp:
        return timestamp
    return timestamp.replace(" BC", "+00 BC") if "BC" in timestamp else f"{timestamp}+00"


VALUES: dict[int, list[str]] = {
    sql.INT2: _INTEGERS,
    sql.INT4: [*_INTEGERS, "2147483647", "-2147483648", "16777217"],
    sql.INT8: [*_INTEGERS, "9223372036854775807", "-9223372036854775808", "9007199254740993", "16777217"],
    sql.NUMERIC: [*_NUMBERS, "Infinity", "-Infinity"],
    sql.FLOAT4: _FLOATS,
    sql.FLOAT8: [*_FLOATS, "1e300", "9007199254740992", "5e-324", "0.10000000149011612"],
    sql.BOOLEAN: ["t", "f"],
    sql.TEXT: _TEXTS,
    sql.VARCHAR: _TEXTS,
    sql.BPCHAR: _TEXTS,
    sql.UUID: _UUIDS,
    sql.DATE: _DATES,
    sql.TIMESTAMP: _TIMESTAMPS,
    sql.TIMESTAMPTZ: [_in_utc(text) for text in _TIMESTAMPS],
    sql.TIME: _TIMES,
    sql.INTERVAL: _INTERVALS,
    1005: _INTEGER_ARRAYS,
    1007: _INTEGER_ARRAYS,
    1016: _INTEGER_ARRAYS,
    1009: _TEXT_ARRAYS,
    1015: _TEXT_ARRAYS,
    2951: _UUID_ARRAYS,
    MOOD: LABELS,
    WEATHER: ["ok", "sad", "rain"],
    MOODS: _LABEL_ARRAYS,
}
VALUES |= {domain: VALUES[oid] for domain, oid in DOMAINS.items()}
"""Texts of values by type OID."""

WORDS = _TEXTS
