"""A table with a column of every type that ``docs/kafka_sinks.md`` mentions, and a workload of all kinds of changes.

The packaged server has no XML values, so these columns are empty.
"""

from collections.abc import Iterator
from typing import Final

USER_TYPES: Final = (
    "CREATE EXTENSION hstore",
    "CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'happy')",
    "CREATE DOMAIN amount AS numeric",
    "CREATE DOMAIN code AS varchar(8)",
    "CREATE DOMAIN moment AS timestamp(3)",
    "CREATE TYPE pair AS (a int, b text)",
)
COLUMNS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "flag": ("boolean", ("true", "false")),
    "i2": ("smallint", ("-32768", "32767")),
    "i4": ("integer", ("-2147483648", "2147483647")),
    "i8": ("bigint", ("-9223372036854775808", "9223372036854775807")),
    "o": ("oid", ("0", "4294967295")),
    "f4": ("real", ("0.1", "'NaN'", "'-Infinity'", "3.4028235e38", "1e-45", "16777216", "1e15", "-0.0")),
    "f8": ("double precision", ("0.1", "'NaN'", "'Infinity'", "1e300", "5e-324", "12345678.9", "100", "-0.0")),
    "n": (
        "numeric",
        ("1.50", "'NaN'", "'Infinity'", "'-Infinity'", "123456789012345678901234567890.1230", "1e-20", "1e30", "-0.00"),
    ),
    "n2": ("numeric(12,4)", ("1.5", "-0.00005", "'NaN'", "12345678", "0")),
    "money": ("money", ("1234567.891", "-0.05", "0", "-1234.5")),
    "bit1": ("bit(1)", ("B'1'", "B'0'")),
    "bits": ("bit(12)", ("B'101000000001'", "B'000000000000'", "B'000000000111'")),
    "vbit1": ("bit varying(1)", ("B'1'", "B''", "B'0'")),
    "vbits": ("bit varying(20)", ("B'100000001'", "B''", "B'0001'")),
    "vbit": ("bit varying", ("B'1'", "B''", "B'100000001'")),
    "d": (
        "date",
        (
            "'2018-06-20'",
            "'infinity'",
            "'-infinity'",
            "'0001-01-01'",
            "'0044-03-15 BC'",
            "'10000-01-01'",
            "'1582-10-10'",
        ),
    ),
    "t": ("time", ("'13:51:30.123789'", "'00:00'", "'24:00'", "'23:59:59.999999'")),
    "t0": ("time(0)", ("'13:51:30.7'", "'24:00'")),
    "t3": ("time(3)", ("'13:51:30.1236'", "'00:00'")),
    "t6": ("time(6)", ("'13:51:30.1236'",)),
    "ts": (
        "timestamp",
        (
            "'2018-06-20 15:13:16.945104'",
            "'infinity'",
            "'-infinity'",
            "'1969-12-31 23:59:59.999999'",
            "'0044-03-15 12:00 BC'",
            "'10000-01-01'",
            "'1582-10-10 00:00'",
            "'294276-12-31'",
        ),
    ),
    "ts0": ("timestamp(0)", ("'2018-06-20 15:13:16.945104'", "'infinity'", "'1969-12-31 23:59:58'")),
    "ts2": ("timestamp(2)", ("'1969-12-31 23:59:59.5'", "'-infinity'", "'2018-06-20 15:13:16.945104'")),
    "ts3": ("timestamp(3)", ("'2018-06-20 15:13:16.945104'", "'infinity'")),
    "tz": (
        "timestamptz",
        (
            "'2018-06-20 15:13:16.945104+02'",
            "'2018-06-20 15:13:16+02'",
            "'2018-06-20 15:13:16.9+02'",
            "'infinity'",
            "'-infinity'",
            "'0044-03-15 12:00 BC'",
            "'10000-01-01 00:00+00'",
            "'0001-01-01 00:00+00'",
            "'2018-06-20 15:00+05:45'",
        ),
    ),
    "tz0": ("timestamptz(0)", ("'2018-06-20 15:13:16.945104+02'", "'infinity'")),
    "tz3": ("timestamptz(3)", ("'2018-06-20 15:13:16.9+02'", "'2018-06-20 15:13:16+02'")),
    "tz5": ("timestamptz(5)", ("'2018-06-20 15:13:16.9+02'", "'2018-06-20 15:13:16+02'")),
    "ttz": (
        "timetz",
        (
            "'13:51:30.123789+02'",
            "'00:30+01'",
            "'24:00+00'",
            "'00:00+00'",
            "'13:51+05:30'",
            "'23:00-02'",
            "'13:51:30.5-00:30'",
        ),
    ),
    "ttz0": ("timetz(0)", ("'13:51:30.7+02'", "'00:00+02'")),
    "iv": (
        "interval",
        (
            "'1 year 2 mons 3 days 04:05:06.78'",
            "'-1 days +02:00'",
            "'-0.5 s'",
            "'0'",
            "'1 mon'",
            "'0.000001 s'",
            "'-1 year -2 mons +3 days -04:05:06.789'",
            "'178000000 years'",
            "'infinity'",
        ),
    ),
    "by": ("bytea", ("'\\x00ff10'", "''")),
    "j": ("json", ("'{\"a\":  1}'", "'null'")),
    "jb": ("jsonb", ('\'{"a":  1, "b": [1, null, "x"]}\'', "'null'")),
    "x": ("xml", ()),
    "u": ("uuid", ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",)),
    "ip": ("inet", ("'10.0.0.1/24'", "'::1'")),
    "net": ("cidr", ("'10.0.0.0/8'",)),
    "mac": ("macaddr", ("'08:00:2b:01:02:03'",)),
    "mac8": ("macaddr8", ("'08:00:2b:01:02:03:04:05'",)),
    "r4": ("int4range", ("'[1,5]'", "'empty'", "'(,)'")),
    "r8": ("int8range", ("'[1,5]'",)),
    "rn": ("numrange", ("'[1.5,5.0)'",)),
    "rts": ("tsrange", ("'[2018-01-01,2018-01-02)'",)),
    "rtz": ("tstzrange", ("'[2018-01-01 00:00+02,2018-01-02 00:00+02)'",)),
    "rd": ("daterange", ("'[2018-01-01,2018-01-02]'",)),
    "c": ("char(4)", ("'ab'", "''")),
    "c1": ('"char"', ("'a'", "''")),
    "nm": ("name", ("'a name'",)),
    "vc": ("varchar(9)", ("'abc'", "''")),
    "tx": ("text", ("'a \"text\" \\ é 😀'", "E'line\\n\\ttab\\x01'", "'NULL'")),
    "tsv": ("tsvector", ("'a fat cat'",)),
    "tsq": ("tsquery", ("'fat & cat'",)),
    "pl": ("pg_lsn", ("'16/B374D848'",)),
    "hs": ("hstore", ("'b=>2, a=>1, ccc=>NULL'", "''", '\'"q\\""=>"b\\\\"\'', '\'"é"=>"😀"\'')),
    "pt": ("point", ("'(1.5,-2)'", "'(0,0)'", "'(1e300,NaN)'")),
    "bx": ("box", ("'(1,2),(3,4)'",)),
    "ln": ("line", ("'{1,2,3}'",)),
    "ci": ("circle", ("'<(1,2),3>'",)),
    "md": ("mood", ("'sad'", "'it''s ok'")),
    "am": ("amount", ("1.50", "'NaN'")),
    "cd": ("code", ("'abc'",)),
    "mt": ("moment", ("'2018-06-20 15:13:16.945'", "'infinity'")),
    "pr": ("pair", ("'(1,x)'",)),
    "a_flag": ("boolean[]", ("'{t,NULL,f}'", "'{}'")),
    "a_i2": ("smallint[]", ("'{1,NULL,-3}'", "'{}'")),
    "a_i4": ("integer[]", ("'{1,NULL,-3}'", "'{}'", "'[0:1]={7,8}'")),
    "a_i8": ("bigint[]", ("'{1,NULL,9223372036854775807}'",)),
    "a_o": ("oid[]", ("'{1,NULL,4294967295}'",)),
    "a_f4": ("real[]", ("'{0.1,NULL,NaN}'",)),
    "a_f8": ("double precision[]", ("'{0.1,NULL,Infinity}'",)),
    "a_n": ("numeric[]", ("'{1.50,NULL,1e20}'", "'{NaN}'")),
    "a_n2": ("numeric(10,2)[]", ("'{1.5,NULL,2}'",)),
    "a_money": ("money[]", ("'{1.5,NULL}'",)),
    "a_bits": ("bit(4)[]", ("'{1010,NULL}'",)),
    "a_vbits": ("bit varying[]", ("'{1010,NULL}'",)),
    "a_d": ("date[]", ("'{2018-06-20,NULL}'", "'{infinity}'")),
    "a_t": ("time[]", ("'{13:51:30.123789,NULL}'",)),
    "a_t3": ("time(3)[]", ("'{13:51:30.123,NULL}'",)),
    "a_ts": ("timestamp[]", ("'{2018-06-20 15:13:16.945104,NULL}'", "'{infinity}'")),
    "a_ts3": ("timestamp(3)[]", ("'{2018-06-20 15:13:16.945,NULL}'",)),
    "a_tz": ("timestamptz[]", ("'{2018-06-20 15:13:16.945104+02,NULL}'", "'{infinity}'", "'{2018-06-20 15:13:16+02}'")),
    "a_tz3": ("timestamptz(3)[]", ("'{2018-06-20 15:13:16.9+02,NULL}'",)),
    "a_ttz": ("timetz[]", ("'{13:51:30.123789+02,NULL}'", "'{00:30+01}'")),
    "a_iv": ("interval[]", ("'{1 day,NULL}'",)),
    "a_by": ("bytea[]", ("ARRAY['\\x00ff'::bytea, NULL]",)),
    "a_j": ("json[]", ("ARRAY['{\"a\": 1}'::json, NULL]",)),
    "a_jb": ("jsonb[]", ("ARRAY['{\"a\": 1}'::jsonb, NULL]",)),
    "a_x": ("xml[]", ()),
    "a_u": ("uuid[]", ("'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}'",)),
    "a_ip": ("inet[]", ("'{10.0.0.1/24,NULL}'",)),
    "a_r4": ("int4range[]", ("'{\"[1,5]\",NULL}'",)),
    "a_c": ("char(4)[]", ("'{ab,NULL}'",)),
    "a_nm": ("name[]", ("'{ab,NULL}'",)),
    "a_vc": ("varchar(9)[]", ("'{ab,NULL}'",)),
    "a_tx": ("text[]", ('\'{a,"b,\\"c\\\\",NULL,"NULL",""}\'', "'{}'")),
    "a_pt": ("point[]", ("'{\"(1,2)\",NULL}'",)),
    "a_bx": ("box[]", ("ARRAY['(1,2),(3,4)'::box, '(0,0),(1,1)', NULL]", "'{}'")),
    "a_hs": ("hstore[]", ("ARRAY['a=>1'::hstore, NULL]",)),
    "a_md": ("mood[]", ("'{sad,happy}'",)),
    "a_md0": ("mood[]", ("'{sad,NULL}'",)),
    "a_am": ("amount[]", ("'{1.50,NULL}'",)),
    "a_pr": ("pair[]", ("'{\"(1,x)\",NULL}'",)),
    "a2": ("integer[]", ("'{{1,2},{3,NULL}}'",)),
    "a2_tx": ("text[]", ("'{{a,b},{c,NULL}}'",)),
    "needed": ("integer NOT NULL DEFAULT 5", ("1", "2")),
    "steady": ("integer NOT NULL DEFAULT 7", ()),
    "preset": ("text DEFAULT 'pre'", ("'x'",)),
}
"""Each column's type and values, as SQL."""
LAST_ID: Final = 200
"""That of the last row of the workload."""
_TEXT: Final = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 100) n)"
_DIGITS: Final = "(SELECT string_agg((n * 7919 % 1000)::text, '') FROM generate_series(1, 1500) n)::numeric"
_LARGE: Final = {
    "tx": _TEXT,
    "by": f"decode({_TEXT}, 'hex')",
    "j": f"to_json({_TEXT})",
    "jb": f"to_jsonb({_TEXT})",
    "n": _DIGITS,
    "am": _DIGITS,
    "hs": f"hstore('k', {_TEXT})",
}
"""Values that are stored out of line, by column."""
_ELEMENTS: Final = {
    "a_flag": "n % 3 = 0",
    "a_i2": "n::int2",
    "a_i4": "n::int4",
    "a_i8": "n::int8",
    "a_f8": "n::float8",
    "a_n": "n::numeric",
    "a_d": "'2020-01-01'::date + n::int",
    "a_ts": "'2020-01-01'::timestamp + n * interval '1 hour'",
    "a_tz": "'2020-01-01'::timestamptz + n * interval '1 hour'",
    "a_u": "md5(n::text)::uuid",
    "a_by": "decode(md5(n::text), 'hex')",
    "a_tx": "md5(n::text)",
    "a_jb": "to_jsonb(md5(n::text))",
    "a_md": "'sad'::mood",
    "a_r4": "int4range(0, n::int)",
}
"""Elements of large arrays, by column."""
_MANY: Final = "(SELECT array_agg({element}) FROM generate_series(1, 800) n)"
_CHANGES: Final = (
    "UPDATE {table} SET i4 = 7, tx = 'new', tz3 = 'infinity' WHERE id = 3",
    "UPDATE {table} SET i4 = 7 WHERE id = 3",
    "UPDATE {table} SET needed = 2, i4 = 10, d = NULL WHERE id = 3",
    "UPDATE {table} SET needed = 3 WHERE id = 100",
    "UPDATE {table} SET id = 50, i4 = 8 WHERE id = 2",
    "DELETE FROM {table} WHERE id = 3",
)
_LARGE_CHANGES: Final = (
    "UPDATE {table} SET i4 = 9 WHERE id = 60",
    "DELETE FROM {table} WHERE id = 60",
    "TRUNCATE {table}",
)


def every_type(table: str) -> Iterator[str]:
    """The statements that create the table. Its large values are not compressed, so that they are out of line."""
    columns = ", ".join(f"{name} {sql_type}" for name, (sql_type, _) in COLUMNS.items())
    yield f"CREATE TABLE {table} (id serial PRIMARY KEY, {columns})"
    for name in (*_LARGE, *_ELEMENTS):
        yield f"ALTER TABLE {table} ALTER {name} SET STORAGE EXTERNAL"


def earlier_rows(table: str) -> Iterator[str]:
    """Inserts of all values, to be read by a snapshot."""
    yield from _rows(table, LAST_ID)
    yield _large_row(table, LAST_ID + 60)


def workload(table: str) -> Iterator[str]:
    """Transactions: inserts of all values, updates, a change of a key, deletes, and a truncate."""
    yield from _rows(table, 0)
    yield from (each.format(table=table) for each in _CHANGES)
    yield _large_row(table, 60)
    yield from (each.format(table=table) for each in _LARGE_CHANGES)
    yield _insert(table, LAST_ID, {})


def _rows(table: str, after_id: int) -> Iterator[str]:
    for number in range(max(len(values) for _, values in COLUMNS.values())):
        row = {name: values[number] for name, (_, values) in COLUMNS.items() if number < len(values)}
        yield _insert(table, after_id + number + 1, row)
    yield _insert(table, after_id + 100, {"preset": "NULL"})


def _large_row(table: str, row_id: int) -> str:
    return _insert(table, row_id, _LARGE | {name: _MANY.format(element=each) for name, each in _ELEMENTS.items()})


def _insert(table: str, row_id: int, values: dict[str, str]) -> str:
    row = {"id": str(row_id), "needed": "1", **values}
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(row.values())})"  # noqa: S608
