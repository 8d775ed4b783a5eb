"""PostgreSQL's texts as Debezium's values: by examples of its documentation and source, and by Python's calendar."""

import json
from base64 import b64decode, b64encode
from datetime import date, datetime, timedelta, timezone
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import DecodeError
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.sinks.debezium_types import UNAVAILABLE, connect_type
from flushtracker.sinks.debezium_values import json_value

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  as a timestamp without time zone
TYPES = {
    20_001: TypeBinding(20_001, "public", "mood", "enum", labels=(EnumLabel(1, "sad", 1), EnumLabel(2, "happy", 1))),
    20_002: TypeBinding(20_002, "public", "amount", "domain", (1700,)),
    20_003: TypeBinding(20_003, "public", "_mood", "array", (20_001,)),
    20_004: TypeBinding(20_004, "public", "hstore", "base"),
    20_005: TypeBinding(20_005, "public", "pair", "composite", (23, 25)),
    20_006: TypeBinding(20_006, "public", "days", "domain", (1182,)),
    20_007: TypeBinding(20_007, "public", "geometry", "base"),
    20_008: TypeBinding(20_008, "public", "_geometry", "array", (20_007,)),
    20_009: TypeBinding(20_009, "public", "area", "domain", (603,)),
    20_010: TypeBinding(20_010, "public", "_area", "array", (20_009,)),
    20_011: TypeBinding(20_011, "public", "citext", "base"),
    20_012: TypeBinding(20_012, "public", "_citext", "array", (20_011,)),
}

INTEGERS: Final = {"int16": 16, "int32": 32, "int64": 64}
VALUES: Final = [
    (16, -1, "t", True),
    (16, -1, "f", False),
    (17, -1, "\\x00ff10", "AP8Q"),
    (17, -1, "\\x", ""),
    (20, -1, "9223372036854775807", 2**63 - 1),
    (21, -1, "-32768", -32_768),
    (26, -1, "4294967295", 2**32 - 1),
    (700, -1, "0.1", 0.1),
    (701, -1, "1e+300", 1e300),
    (701, -1, "NaN", "NaN"),
    (701, -1, "-Infinity", "-Infinity"),
    (1700, 655_366, "1.50", "1.50"),
    (1700, -1, "123456789012345678901234567890.123", "123456789012345678901234567890.123"),
    (1700, -1, "NaN", "NAN"),
    (1700, -1, "-Infinity", "NEGATIVE_INFINITY"),
    (790, -1, "$1.50", "1.50"),
    (790, -1, "-$1,234,567.89", "-1234567.89"),
    (1082, -1, "1970-01-01", 0),
    (1082, -1, "0001-01-01 BC", -719_528),
    (1082, -1, "infinity", 2**31 - 1),
    (1083, -1, "24:00:00", 86_400_000_000),
    (1083, 6, "13:51:30.123789", 49_890_123_789),
    (1083, 3, "13:51:30.123", 49_890_123),
    (1083, 0, "00:00:01", 1_000),
    (1114, -1, "2018-06-20 15:13:16.945104", 1_529_507_596_945_104),
    (1114, 3, "2018-06-20 15:13:16.945", 1_529_507_596_945),
    (1114, 2, "1969-12-31 23:59:59.5", -500),
    (1114, -1, "infinity", 9_223_372_036_825_200_000),
    (1114, -1, "0001-12-31 23:59:59 BC", -62_135_596_801_000_000),
    (1184, -1, "2018-06-20 15:13:16.945104+02", "2018-06-20T13:13:16.945104Z"),
    (1184, -1, "2018-06-20 15:13:16+00", "2018-06-20T15:13:16.000000Z"),
    (1184, 3, "2018-06-20 15:13:16.9+00", "2018-06-20T15:13:16.900Z"),
    (1184, 0, "2018-06-20 15:13:16+00", "2018-06-20T15:13:16Z"),
    (1184, -1, "1883-01-01 00:00:00-04:56:02", "1883-01-01T04:56:02.000000Z"),
    (1184, 0, "0044-03-15 12:00:00+00 BC", "-0043-03-15T12:00:00Z"),
    (1184, 0, "10000-01-01 00:00:00+00", "+10000-01-01T00:00:00Z"),
    (1184, -1, "-infinity", "-infinity"),
    (1266, -1, "13:51:30.123789+02", "11:51:30.123789Z"),
    (1266, -1, "00:30:00+01", "23:30:00Z"),
    (1186, -1, "1 year 2 mons 3 days 04:05:06.78", 37_091_106_780_000),
    (1186, -1, "-1 days +02:00:00", -79_200_000_000),
    (1186, -1, "-00:00:00.5", -500_000),
    (1186, -1, "infinity", 2**63 - 1),
    (603, -1, "(3,4),(1,2)", "(3,4),(1,2)"),
    (1020, -1, "{(3,4),(1,2);(1,1),(0,0)}", "{(3,4),(1,2);(1,1),(0,0)}"),
    (20_008, -1, "{0101:0102}", "{0101:0102}"),
    (20_010, -1, "{(3,4),(1,2);(1,1),(0,0)}", "{(3,4),(1,2);(1,1),(0,0)}"),
    (20_012, -1, "{a,B}", ["a", "B"]),
    (1560, 1, "1", True),
    (1560, 4, "1010", "Cg=="),
    (1562, -1, "", ""),
    (1562, 20, "100000001", "AQE="),
    (2950, -1, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    (3802, -1, '{"a": 1}', '{"a": 1}'),
    (3904, -1, "[1,5)", "[1,5)"),
    (1042, 7, "ab ", "ab "),
    (20_001, -1, "sad", "sad"),
    (20_002, -1, "1.5", "1.5"),
    (20_003, -1, "{sad,NULL}", ["sad", None]),
    (20_005, -1, "(1,a)", "(1,a)"),
    (20_006, -1, "{1970-01-02}", [1]),
    (1007, -1, "{{1,2},{3,NULL}}", [[1, 2], [3, None]]),
    (1007, -1, "[0:1]={1,2}", [1, 2]),
    (1007, -1, "{}", []),
    (1009, -1, '{a,"b,\\"c\\\\",NULL,"NULL",""}', ["a", 'b,"c\\', None, "NULL", ""]),
    (1001, -1, '{"\\\\x00ff"}', ["AP8="]),
    (1182, -1, "{1970-01-02,NULL}", [1, None]),
    (1115, 3, '{"1970-01-01 00:00:01"}', [1_000]),
]


def value(oid: int, text: str, modifier: int = -1) -> Any:
    return connect_type(oid, modifier, TYPES).convert(text)


def unavailable(oid: int) -> Any:
    return connect_type(oid, -1, TYPES).unavailable


@pytest.mark.parametrize(("oid", "modifier", "text", "expected"), VALUES)
def test_values_are_those_of_debezium(oid: int, modifier: int, text: str, expected: object) -> None:
    assert value(oid, text, modifier) == expected
    assert type(value(oid, text, modifier)) is type(expected)


def test_hstore_is_a_json_object_as_text() -> None:
    assert json.loads(value(20_004, r'"a"=>"1", "b\"\\"=>NULL, ""=>"NULL"')) == {"a": "1", 'b"\\': None, "": "NULL"}
    assert value(20_004, "") == "{}"


def test_point_has_its_coordinates_and_their_wkb() -> None:
    point = value(600, "(1.5,-2)")
    assert (point["x"], point["y"], point["srid"]) == (1.5, -2.0, None)
    assert b64decode(point["wkb"]).hex() == "0101000000000000000000f83f00000000000000c0"


@given(st.dates())
def test_dates_are_days_since_1970(day: date) -> None:
    assert value(1082, day.isoformat()) == (day - EPOCH.date()).days


@given(st.datetimes())
def test_timestamps_are_microseconds_since_1970(time: datetime) -> None:
    text = time.isoformat(" ")
    assert value(1114, text) == (time - EPOCH) // timedelta(microseconds=1)
    assert value(1114, text, 3) == (time - EPOCH) // timedelta(milliseconds=1)


@given(st.datetimes(EPOCH.replace(year=2), EPOCH.replace(year=9998)), st.integers(-12 * 60, 14 * 60))
def test_times_with_zones_are_in_utc(time: datetime, offset_minutes: int) -> None:
    zone = timezone(timedelta(minutes=offset_minutes))
    expected = time.replace(tzinfo=zone).astimezone(timezone.utc)
    text = time.replace(tzinfo=zone).isoformat(" ")
    assert value(1184, text) == f"{expected:%Y}".rjust(4, "0") + f"{expected:-%m-%dT%H:%M:%S.%f}Z"
    _, _, time_text = text.partition(" ")
    micros = f"{expected:.%f}".rstrip("0").rstrip(".")
    assert value(1266, time_text) == f"{expected:%H:%M:%S}{micros}Z"


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
def test_arrays_of_texts_are_read_as_they_were_written(elements: list[str | None]) -> None:
    quoted = (
        "NULL" if each is None else '"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in elements
    )
    assert value(1009, "{" + ",".join(quoted) + "}") == elements


def test_a_value_that_was_not_sent_has_the_placeholder_of_its_type() -> None:
    assert unavailable(25) == unavailable(1700) == unavailable(20_002) == UNAVAILABLE
    assert b64decode(unavailable(17)) == UNAVAILABLE.encode()
    assert json.loads(unavailable(20_004)) == {UNAVAILABLE: UNAVAILABLE}
    assert unavailable(1009) == unavailable(20_003) == [UNAVAILABLE]
    assert unavailable(2951) == ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]
    assert [b64decode(each) for each in unavailable(1001)] == [UNAVAILABLE.encode()]
    assert unavailable(1007) == unavailable(1182) == unavailable(1022) == list(UNAVAILABLE.encode())
    assert unavailable(1000) is unavailable(1017) is None


def conforms(value: Any, schema: Any) -> bool:
    """Whether Connect's JSON converter reads the value as what the schema says."""
    if value is None:
        return bool(schema["optional"])
    kind = schema["type"]
    if kind == "array":
        return type(value) is list and all(conforms(each, schema["items"]) for each in value)
    if kind == "struct":
        fields = {field["field"]: field for field in schema["fields"]}
        return fields.keys() == value.keys() and all(conforms(each, fields[name]) for name, each in value.items())
    if kind in {"float", "double"}:
        return type(value) is float or value in {"NaN", "Infinity", "-Infinity"}
    if kind in INTEGERS:
        return type(value) is int and -(2 ** (INTEGERS[kind] - 1)) <= value < 2 ** (INTEGERS[kind] - 1)
    is_base64 = kind != "bytes" or b64encode(b64decode(value)).decode() == value
    return is_base64 and type(value) is {"string": str, "bytes": str, "boolean": bool}[kind]


@pytest.mark.parametrize(
    ("oid", "modifier", "text"),
    [
        *[each[:3] for each in VALUES],
        *[
            (20_004, -1, '"a"=>"1"'),
            (600, -1, "(1.5,NaN)"),
            (1017, -1, '{"(1,2)",NULL}'),
            (1114, -1, "294276-12-31 00:00:00"),
        ],
        *[(1186, -1, "178000000 years"), (1186, -1, "-178000000 years"), (1114, 3, "infinity")],
    ],
)
def test_values_and_placeholders_are_of_their_schemas(oid: int, modifier: int, text: str) -> None:
    """In arrays of several dimensions, the elements are."""
    found = connect_type(oid, modifier, TYPES, is_flat=True)
    schema = found.field("c", is_optional=True)
    assert conforms(found.convert(text), schema)
    assert conforms(found.unavailable, schema)


def test_arrays_of_several_dimensions_can_be_flat() -> None:
    assert connect_type(1007, -1, TYPES, is_flat=True).convert("{{1,2},{3,NULL}}") == [1, 2, 3, None]


@pytest.mark.parametrize(
    ("type_oid", "modifier", "name", "parameters"),
    [
        *[(1082, -1, "time.Date", None), (1083, 3, "time.Time", None), (1083, 4, "time.MicroTime", None)],
        *[
            (1114, 0, "time.Timestamp", None),
            (1114, -1, "time.MicroTimestamp", None),
            (1186, -1, "time.MicroDuration", None),
        ],
        *[(1184, 3, "time.ZonedTimestamp", None), (1266, -1, "time.ZonedTime", None), (3802, -1, "data.Json", None)],
        *[(142, -1, "data.Xml", None), (2950, -1, "data.Uuid", None), (600, -1, "data.geometry.Point", None)],
        *[(1560, 4, "data.Bits", {"length": "4"}), (1562, -1, "data.Bits", {"length": "2147483647"})],
        *[(20_001, -1, "data.Enum", {"allowed": "sad,happy"}), (20_004, -1, "data.Json", None)],
    ],
)
def test_semantic_types_are_named(type_oid: int, modifier: int, name: str, parameters: object) -> None:
    schema = connect_type(type_oid, modifier, TYPES).schema
    assert (schema["name"], schema["version"], schema.get("parameters")) == (f"io.debezium.{name}", 1, parameters)


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        *[
            (17, "abc"),
            (20, "x"),
            (701, ""),
            (1082, "Jan 1"),
            (1083, "1"),
            (1114, "2018-06-20 25:00:00"),
            (1184, "now"),
        ],
        *[(1266, "10:00:00"), (1186, "P1D"), (1560, "2"), (1007, "1"), (1007, "{1"), (600, "(1)"), (20_004, "a")],
    ],
)
def test_a_text_of_another_type_is_an_error_that_does_not_show_it(oid: int, text: str) -> None:
    with pytest.raises(DecodeError, match=r"^column 'c' has a value that is not of its type$"):
        json_value(connect_type(oid, -1, TYPES).convert, text, "c")


def test_null_is_null() -> None:
    assert json_value(connect_type(23, -1, TYPES).convert, None, "c") is None
