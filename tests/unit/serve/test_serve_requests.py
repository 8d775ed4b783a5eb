"""What a request may say: parameters, handles, offsets, definitions; and that nothing malformed gets through."""

import asyncio
import random
import threading
from collections.abc import Container
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from flushtracker.config.serve_config import TailConfig, load_serve_config
from flushtracker.errors import ConfigError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.serve.definitions import Definitions, Target
from flushtracker.serve.handle import ClientOffset, Handle, next_handle
from flushtracker.serve.http_answers import preflight_headers
from flushtracker.serve.query_string import parse_query
from flushtracker.serve.refusals import BadRequestError
from flushtracker.serve.schema import schema_json
from flushtracker.serve.shape_request import RequestedDefinition, ShapeRequest
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.type_binding import TypeBinding
from flushtracker.shapes.where import Where, parse_where
from flushtracker.wal.changes import TableName
from tests.support.key_bindings import ID_KEY
from tests.support.sample_registry import register, shape_entry, table_entry
from tests.support.serve_client import Server, serving
from tests.support.shape_log_rows import append, commit, item

_NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
HANDLE = "0123456789abcdef-3-0"


@pytest.fixture
def log(tmp_path: Path) -> str:
    uri = str(tmp_path / "log")
    create_shape_log(uri)
    other = replace(shape_entry("dear"), definition=ShapeDefinition("dear", ("public", "users"), where="price > 100"))
    register(uri, shape_entry(), other, table_entry())
    append(uri, [item((10, 0), "insert", "a", {"id": "1"}), commit(10)])
    return uri


@pytest.mark.parametrize(
    "query",
    [
        "shape=a&shape=b",
        "shape=a&shape=a",
        "shape=a&%73hape=b",
        "shape=a&sh%61pe=b",
        "offset=-1&shape=a&offset=0_0",
        "shape=%",
        "shape=%g0",
        "shape=%ff",
        "shape=a%00",
        "shape",
        "=a",
        "&".join(f"p{n}=1" for n in range(201)),
    ],
)
def test_query_that_could_be_read_in_two_ways_is_refused(query: str) -> None:
    """A gatekeeper in front may read it in the other way."""
    with pytest.raises(BadRequestError):
        parse_query(query.encode())


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({}, "offset is missing"),
        ({"offset": "-1"}, "shape is missing"),
        ({"offset": "-1", "shape": "a", "table": "b"}, "table must not be given"),
        ({"offset": "-1", "shape": "a", "where": "b"}, "where must not be given"),
        ({"offset": "-1", "shape": "a", "params[1]": "b"}, "params must not be given"),
        ({"offset": "5", "shape": "a"}, "offset is not -1"),
        ({"offset": "5_", "shape": "a"}, "offset is not -1"),
        ({"offset": "٥_0", "shape": "a"}, "offset is not -1"),
        ({"offset": "9999999999999999999_0", "shape": "a"}, "offset is not -1"),
        ({"offset": "05_0", "shape": "a"}, "offset is not -1"),
        ({"offset": "5_0", "shape": "a"}, "handle is missing"),
        ({"offset": "-1", "shape": "a", "live": "true"}, "live=true needs the offset"),
        ({"offset": "now", "shape": "a", "live": "true"}, "live=true needs the offset"),
        ({"offset": "5_0", "handle": HANDLE, "shape": "a", "live": "yes"}, "live is neither"),
        ({"offset": "5_0", "handle": HANDLE, "shape": "a", "live_sse": "true"}, "needs live=true"),
        ({"offset": "5_0", "handle": "", "shape": "a"}, "handle is empty"),
        ({"offset": "5_0", "handle": "x" * 201, "shape": "a"}, "handle is empty or longer"),
        ({"offset": "-1", "shape": "a", "cursor": "-1"}, "cursor is not one"),
        ({"offset": "-1", "shape": "a", "log": "all"}, "log is neither"),
        ({"offset": "-1", "shape": "a", "database_id": "x", "source_id": "1"}, "database_id, source_id"),
        ({"offset": "-1", "table": "a", "replica": "x"}, "replica is neither"),
        ({"offset": "-1", "table": "a", "where": "x" * 8001}, "more than 8000"),
        ({"offset": "-1", "table": "a", "where": "x = $1", "params": "[1]"}, "params is not one JSON object"),
        ({"offset": "-1", "table": "a", "where": "x = $1", "params": "{"}, "params is not JSON"),
        ({"offset": "-1", "table": "a", "where": "x = $1", "params": '{"1":"a","1":"b"}'}, "params has a key twice"),
        ({"offset": "-1", "table": "a", "where": "x = $1", "params[x]": "1"}, "not a number from 1"),
    ],
)
def test_malformed_request_is_refused_with_the_parameter(query: dict[str, str], problem: str) -> None:
    """The message never has the value."""
    with pytest.raises(BadRequestError, match=problem.replace("[", r"\[")):
        ShapeRequest.of(query)


def test_handles_and_offsets_are_read_as_they_were_written() -> None:
    """Another spelling of a number is another text, which no server has made."""
    assert str(Handle.parse(HANDLE)) == HANDLE
    assert str(ClientOffset.parse("9223372036854775807_7")) == "9223372036854775807_7"
    for text in ("", "x", f"{HANDLE}\n", "0123456789ABCDEF-3-0", "0123456789abcdef-03-0", "0123456789abcdef-3"):
        request = ShapeRequest.of({"shape": "a", "offset": "1_0", "handle": text or "-"})
        assert request.handle is None
    current = Handle("0123456789abcdef", 3)
    assert next_handle(current, None, replace(current, generation=4), replace(current, generation=2)).generation == 5


TABLE = TableBinding(
    7,
    ("public", "items"),
    ID_KEY,
    tuple(
        ColumnBinding(n, name, oid, -1, 0) for n, (name, oid) in enumerate({"id": 20, "Name": 25, "p": 1700}.items())
    ),
)


def definitions(*shapes: ShapeDefinition) -> Definitions:
    entries = [ShapeEntry("7/1/s", shape, 7, shape_entry().starts_after) for shape in shapes]
    table = replace(table_entry(), source="7/1/s", binding=TABLE)
    return Definitions(Registry.of([*entries, table]), None)


def shape_id(known: Definitions, asked: RequestedDefinition) -> str | None:
    target = known.target(asked, ())
    return None if target is None else target.shape_id


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (RequestedDefinition("items", None, None, "default"), "all"),
        (RequestedDefinition('"public"."items"', None, None, "default"), "all"),
        (RequestedDefinition("PUBLIC.Items", None, None, "default"), "all"),
        (RequestedDefinition('"Items"', None, None, "default"), None),
        (RequestedDefinition("items", None, None, "full"), None),
        (RequestedDefinition("items", "id > 5 AND p = 1.5", None, "default"), "some"),
        (RequestedDefinition("items", "(p = '1.50') and 5 < \"id\"", None, "default"), "some"),
        (RequestedDefinition("items", "id > $1 AND p = $2", None, "default", ((1, "5"), (2, "1.5"))), "some"),
        (RequestedDefinition("items", "id > $1 AND p = $2", None, "default", ((1, "6"), (2, "1.5"))), None),
        (RequestedDefinition("items", "id > 5", None, "default"), None),
        (RequestedDefinition("items", None, '"Name","id"', "default"), "named"),
        (RequestedDefinition("items", None, '"Name"', "default"), "named"),
        (RequestedDefinition("items", None, "name,id", "default"), None),
        (RequestedDefinition("others", None, None, "default"), None),
    ],
)
def test_definition_is_found_by_its_meaning(asked: RequestedDefinition, expected: str | None) -> None:
    """However it is spelled; and never a shape that has other rows or columns."""
    items = ("public", "items")
    found = definitions(
        ShapeDefinition("all", items),
        ShapeDefinition("some", items, where="id > 5 AND p = 1.5"),
        ShapeDefinition("named", items, columns=("Name",), primary_key=("id",)),
    )
    assert shape_id(found, asked) == expected


@pytest.mark.parametrize(
    "asked",
    [
        RequestedDefinition("items; drop", None, None, "default"),
        RequestedDefinition("a.b.c", None, None, "default"),
        RequestedDefinition("items", "id >", None, "default"),
        RequestedDefinition("items", "pg_sleep(9)", None, "default"),
        RequestedDefinition("items", "id = $1", None, "default"),
        RequestedDefinition("items", "id = 1", None, "default", ((1, "5"),)),
        RequestedDefinition("items", None, None, "default", ((1, "5"),)),
        RequestedDefinition("items", "id = $1 -- $2", None, "default", ((1, "5"),)),
        RequestedDefinition("items", "\"Name\" = E'\\'$1'", None, "default", ((1, "5"),)),
        RequestedDefinition("items", '"Name" = $1', None, "default", ((1, "\\"),)),
        RequestedDefinition("items", '"Name" = $$x$$', None, "default", ()),
        RequestedDefinition("items", "'", None, "default", ((1, "5"),)),
        RequestedDefinition("items", None, "id,", "default"),
        RequestedDefinition("items", None, "", "default"),
    ],
)
def test_definition_that_cannot_be_read_is_refused(asked: RequestedDefinition) -> None:
    """As malformed, rather than as unknown."""
    with pytest.raises(BadRequestError):
        shape_id(definitions(ShapeDefinition("all", ("public", "items"))), asked)


@pytest.mark.parametrize("where", ["id = x$1", "id = $1a", "id = 'a'$1", "id = $1'a'", "id = $1\n$2", "id = 'a'\n$1"])
def test_placeholder_that_touches_something_is_refused(where: str) -> None:
    """Its literal would be read with that as one: a prefix, or the continuation of a text."""
    values = tuple((number, "5") for number in (1, 2) if f"${number}" in where)
    with pytest.raises(BadRequestError, match="placeholder beside"):
        shape_id(
            definitions(ShapeDefinition("all", ("public", "items"))),
            RequestedDefinition("items", where, None, "default", values),
        )


def test_condition_is_limited_with_its_values() -> None:
    """A value may be named many times."""
    where = " OR ".join(['"Name" = $1'] * 500)
    with pytest.raises(BadRequestError, match="more than 8000 characters"):
        shape_id(definitions(), RequestedDefinition("items", where, None, "default", ((1, "x" * 1000),)))


def test_forms_are_made_once_for_each_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked is parsed once, however many shapes there are, and a change of the registry repeats nothing."""
    items, parsed = ("public", "items"), list[str]()
    shapes = [ShapeDefinition(f"s{n}", items, where=f"id = {n}") for n in range(50)]
    table = replace(table_entry(), source="7/1/s", binding=TABLE)
    entries = [ShapeEntry("7/1/s", shape, 7, shape_entry().starts_after) for shape in shapes]

    def counted(text: str, schema: str | None) -> Where:
        parsed.append(text)
        return parse_where(text, schema)

    monkeypatch.setattr("flushtracker.serve.condition_text.parse_where", counted)
    first = Definitions(Registry.of([*entries, table]), None)
    assert shape_id(first, RequestedDefinition("items", "7 = id", None, "default")) == "s7"
    assert len(parsed) == 51
    changed: list[ShapeEntry | TableEntry] = [
        *entries[1:],
        replace(entries[0], definition=replace(shapes[0], where="id = 100")),
        table,
    ]
    second = Definitions(Registry.of(changed), None, first)
    parsed.clear()
    assert shape_id(second, RequestedDefinition("items", "8 = id", None, "default")) == "s8"
    assert shape_id(second, RequestedDefinition("items", "id = 100", None, "default")) == "s0"
    assert sorted(parsed) == ["8 = id", "id = 100", "id = 100"]


def test_definition_of_several_sources_is_ambiguous() -> None:
    """Unless one is configured; a shape that was removed counts only where none is left."""
    items = ("public", "items")
    one = ShapeEntry("7/1/s", ShapeDefinition("one", items), 7, shape_entry().starts_after)
    two = replace(one, source="8/1/s", definition=ShapeDefinition("two", items))
    removed = replace(two, removed_at=shape_entry().starts_after)
    tables = [replace(table_entry(), source=each.source, binding=TABLE) for each in (one, two)]
    asked = RequestedDefinition("items", None, None, "default")
    with pytest.raises(BadRequestError, match="ambiguous"):
        shape_id(Definitions(Registry.of([one, two, *tables]), None), asked)
    assert shape_id(Definitions(Registry.of([one, two, *tables]), "8/1/s"), asked) == "two"
    assert shape_id(Definitions(Registry.of([one, removed, *tables]), None), asked) == "one"
    assert shape_id(Definitions(Registry.of([removed, *tables]), None), asked) == "two"


def test_a_source_that_another_one_has_replaced_makes_no_definition_ambiguous() -> None:
    """As for a shape that is asked for by its id; a shape that the new source lacks is that of the old one."""
    items = ("public", "items")
    old = ShapeEntry("7/1/s", ShapeDefinition("one", items), 7, shape_entry().starts_after)
    new = replace(old, source="7/1/s/1")
    left = replace(old, definition=ShapeDefinition("left", items, where="id = 1"))
    tables = [replace(table_entry(), source=each.source, binding=TABLE) for each in (old, new)]
    known = Definitions(Registry.of([old, new, left, *tables]), None)
    assert known.target(RequestedDefinition("items", None, None, "default"), ()) == Target("one", entry=new)
    assert shape_id(known, RequestedDefinition("items", "id = 1", None, "default")) == "left"


def test_value_of_a_placeholder_is_only_ever_a_literal() -> None:
    """Whatever quotes it has: it means the shape whose literal it is, and no other."""
    items, value = ("public", "items"), "x' OR 'a' = 'a"
    found = definitions(
        ShapeDefinition("quoted", items, where="\"Name\" = 'x'' OR ''a'' = ''a'"),
        ShapeDefinition("all", items, where="\"Name\" = 'x' OR 'a' = 'a'"),
    )
    assert shape_id(found, RequestedDefinition("items", '"Name" = $1', None, "default", ((1, value),))) == "quoted"


def test_schema_has_what_the_clients_parsers_need() -> None:
    """Types by their names, arrays and domains by what they hold, and what type modifiers say."""
    types = (
        TypeBinding(20_000, "public", "mood", "enum"),
        TypeBinding(20_001, "public", "price", "domain", (1700,)),
        TypeBinding(20_002, "public", "_price", "array", (20_001,)),
        TypeBinding(20_003, "public", "tags", "domain", (1009,)),
    )
    columns = tuple(
        ColumnBinding(n, name, oid, modifier, 0)
        for n, (name, oid, modifier) in enumerate(
            [
                ("id", 20, -1),
                ("n", 1700, (10 << 16 | 2) + 4),
                ("tags", 1009, -1),
                ("code", 1042, 7),
                ("name", 1043, 24),
                ("at", 1184, 3),
                ("mood", 20_000, -1),
                ("price", 20_001, -1),
                ("odd", 99_999, -1),
                ("prices", 20_002, -1),
                ("labels", 20_003, -1),
                ("ranges", 3905, -1),
            ]
        )
    )
    table = replace(TABLE, columns=columns, types=types)
    assert schema_json(columns, table) == (
        '{"id":{"type":"int8","not_null":true,"pk_index":0},"n":{"type":"numeric","precision":10,"scale":2},'
        '"tags":{"type":"text","dims":1},"code":{"type":"bpchar","length":3},"name":{"type":"varchar","max_length":20},'
        '"at":{"type":"timestamptz","precision":3},"mood":{"type":"mood"},"price":{"type":"numeric"},'
        '"odd":{"type":"oid:99999"},"prices":{"type":"price","dims":1},"labels":{"type":"text","dims":1},'
        '"ranges":{"type":"int4range","dims":1}}'
    )
    assert schema_json(columns, None) == "{}"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ("secret: short", "fewer than 8 characters"),
        ("allow_origins: [app.example]", "not an origin"),
        ('allow_origins: ["*", "https://a.example"]', "not an origin"),
        ('hosts: ["a.example:80"]', "without a port"),
        ("connections: 0", "at least 1"),
        ("port: 1", "not a known key"),
        ('allow_headers: ["x y"]', "not the name of a header"),
        ('allow_headers: ["*", "x-tenant"]', "not the name of a header"),
    ],
)
def test_configuration_that_is_wrong_is_refused(tmp_path: Path, changed: str, problem: str) -> None:
    """With the line, and without the secret."""
    path = tmp_path / "serve.yaml"
    path.write_text(f"storage: a\nserve:\n  {changed}\n")
    with pytest.raises(ConfigError, match=problem) as raised:
        load_serve_config(path)
    assert "'short'" not in str(raised.value)
    assert "line 3: serve." in str(raised.value)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("serve: {tail: true}", "line 1: kafka is missing"),
        ("kafka: {topic_prefix: a}\nserve: {tail: true}", "line 2: kafka.bootstrap_servers is missing"),
        ("kafka: {bootstrap_servers: 'k:9', topic_prefix: a b}\nserve: {tail: true}", "line 2: .*a topic name"),
        ("kafka: 'k:9'\nserve: {tail: true, tail_memory: 64 m}", "line 3: serve.tail_memory is .*a unit"),
        ("kafka: broker\nserve: {tail: true}", "line 2: kafka.bootstrap_servers is 'broker', not brokers"),
        ("kafka: 'k:9'\nserve: {tail: maybe}", "line 3: serve.tail is 'maybe', not true or false"),
    ],
)
def test_tail_that_is_wrong_is_refused(tmp_path: Path, keys: str, problem: str) -> None:
    """With the line."""
    path = tmp_path / "serve.yaml"
    path.write_text(f"storage: a\n{keys}\n")
    with pytest.raises(ConfigError, match=problem):
        load_serve_config(path)


def test_tail_has_defaults_and_hides_its_options(tmp_path: Path) -> None:
    """Without it, changes come from the log alone."""
    path = tmp_path / "serve.yaml"
    path.write_text("storage: a\n")
    assert load_serve_config(path).tail is None
    path.write_text("storage: a\nkafka: 'kafka:9092'\nserve: {tail: true}\n")
    expected = TailConfig("kafka:9092", "flushtracker.shape_changes", memory_bytes=64_000_000)
    assert load_serve_config(path).tail == expected
    kafka = "kafka: {bootstrap_servers: 'kafka:9092', options: {sasl.password: horse}}"
    path.write_text(f"storage: a\n{kafka}\nserve: {{tail: true, tail_memory: 1 MB}}\n")
    found = load_serve_config(path).tail
    assert found is not None
    assert (dict(found.options), found.memory_bytes) == ({"sasl.password": "horse"}, 1_000_000)
    assert "horse" not in repr(found)


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ("", ""),
        ("[traceparent, X-Tenant, content-type]", ", traceparent, x-tenant"),
        ('["*"]', ", *"),
    ],
)
def test_headers_of_pages_are_those_of_every_client_and_more(tmp_path: Path, allowed: str, expected: str) -> None:
    """``*`` does not stand for ``authorization``, which stays beside it."""
    path = tmp_path / "serve.yaml"
    more = f"serve: {{allow_headers: {allowed}}}\n" if allowed else ""
    path.write_text(f"storage: a\n{more}")
    found = preflight_headers(load_serve_config(path).http.allow_headers)["access-control-allow-headers"]
    assert found == f"authorization, cache-control, content-type, if-none-match{expected}"


@pytest.mark.parametrize("live", ["true", "false"])
async def test_client_that_comes_from_electric_begins_again(log: str, live: str) -> None:
    """With its handle and any of its offsets, also after the rows of a snapshot; none stops it."""
    async with serving(log) as server:
        for offset in ("0_inf", "0_0", "26800584_4", "26800584_inf"):
            for handle in ("3833821-1721812114261", HANDLE):
                query = {"shape": "users", "offset": offset, "handle": handle, "live": live}
                assert (await server.get(query)).status == 409
        handle = (await server.get({"shape": "users", "offset": "-1"})).headers["electric-handle"]
        again = await server.get({"shape": "users", "offset": "0_inf", "handle": handle, "live": live})
        assert again.status == 409
        assert again.headers["electric-handle"] != handle


def test_table_of_a_subquery_without_a_schema_is_in_public() -> None:
    """As the shape's own, in quotes or not."""
    items = ("public", "items")
    inner = 'id IN (SELECT item FROM {} WHERE "userId" = 7)'
    found = definitions(ShapeDefinition("mine", items, where=inner.format('public."ProjectMembers"')))
    tables = {'"ProjectMembers"': "mine", 'public."ProjectMembers"': "mine", "projectmembers": None}
    for table, expected in tables.items():
        assert shape_id(found, RequestedDefinition("items", inner.format(table), None, "default")) == expected


async def test_secret_is_required_and_not_shown(log: str) -> None:
    """Neither in an answer, nor in a representation of the configuration."""
    async with serving(log, secret="correct-horse") as server:  # noqa: S106
        query = {"shape": "users", "offset": "-1"}
        for wrong in (
            {},
            {"secret": ""},
            {"secret": "correct-hors"},
            {"secret": "correct-horse2"},
            {"secret": "é"},
        ):
            response = await server.get({**query, **wrong})
            assert (response.status, response.headers["cache-control"]) == (401, "no-store")
            assert response.headers["www-authenticate"] == 'secret realm="shapes"'
        assert (await server.get({**query, "secret": "correct-horse"})).status == 200
        assert "correct" not in repr(server.served.app._config)
        # What is wrong besides is told only to who has it.
        assert (await server.get({"offset": "x"})).status == 401


async def test_pages_of_other_origins_are_answered_as_configured(log: str) -> None:
    """None by default; those of a list with their own name; all with ``*``."""

    async def headers(origin: bytes, *allowed: str, method: str = "GET") -> dict[str, str]:
        async with serving(log, allow_origins=allowed) as server:
            given = {b"host": b"localhost", b"origin": origin}
            response = await server.request(b"shape=users&offset=-1", headers=given, method=method)
            assert response.status == (204 if method == "OPTIONS" else 200)
            return response.headers

    name = "access-control-allow-origin"
    assert name not in await headers(b"https://a.example")
    assert (await headers(b"https://a.example", "*"))[name] == "*"
    listed = await headers(b"https://a.example", "https://a.example", "https://b.example")
    assert (listed[name], listed["vary"]) == ("https://a.example", "origin")
    assert "electric-handle" in listed["access-control-expose-headers"]
    assert name not in await headers(b"https://c.example", "https://a.example")
    assert "GET" in (await headers(b"https://a.example", "*", method="OPTIONS"))["access-control-allow-methods"]
    async with serving(log, allow_origins=("*",), allow_headers=("if-none-match", "x-tenant")) as server:
        asked = await server.request(method="OPTIONS", headers={b"host": b"localhost"})
        assert asked.headers["access-control-allow-headers"] == "if-none-match, x-tenant"


async def test_only_the_path_as_it_is_and_the_own_host_are_served(log: str) -> None:
    """No slash, dot, case or encoding leads to it by another name, nor a page's name that resolves to this machine."""
    async with serving(log, hosts=("shapes.example",)) as server:
        query = b"shape=users&offset=-1"
        paths = [b"/", b"//v1/shape", b"/v1//shape", b"/v1/shape/", b"/v1/%73hape", b"/V1/shape", b"/v1/./shape"]
        for path in [*paths, b"http://localhost//v1/shape", b"/v1/shape;a", b"/x/../v1/shape", b"*", b""]:
            assert (await server.request(query, path=path)).status == 404
        for method in ("DELETE", "PUT", "PATCH", "get", "TRACE"):
            response = await server.request(query, method=method)
            assert (response.status, response.headers["allow"]) == (405, "GET, HEAD, POST, OPTIONS")
        hosts = [
            (b"evil.example", 421),
            (b"shapes.example", 200),
            (b"SHAPES.example:80", 200),
            (b"[::1]:9470", 200),
        ]
        for host, status in hosts:
            assert (await server.request(query, headers={b"host": host})).status == status
        head = await server.request(query, method="HEAD")
        assert (head.status, head.body) == (200, b"")


class _Fuzzer:
    """Requests that are wrong in many ways, and some that are right."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311  reproducible

    def text(self) -> str:
        alphabet = "aé🙂\x00\n\r\t %&=+'\"\\$;-1_0,()<>/.~٣\u2028\ud800"
        return "".join(self.rng.choice(alphabet) for _ in range(self.rng.choice([0, 1, 3, 8, 40])))

    def query(self) -> bytes:
        rng = self.rng
        values = {
            "shape": ["users", "dear", "nope", ""],
            "table": ["users", "public.users", '"public"."users"', "a.b.c.d", "users;"],
            "where": ["price > 100", "100 < price", "price >", "1 = 1", "price > $1", "(" * 50, "a OR " * 200 + "a"],
            "columns": ["id", '"id"', "id,id", ",", '"'],
            "params[1]": ["100", "x'--"],
            "params": ["{}", '{"1":"100"}', "[" * 2000],
            "replica": ["default", "full", "none"],
            "offset": ["-1", "now", "0_0", "10_0", "10_1", "-2", "1e3", "0_inf", "99999999999999999999_0", "10_0 "],
            "handle": [HANDLE, "", "x", "0" * 300, "null"],
            "live": ["true", "false", "1", ""],
            "live_sse": ["true", "false", "yes"],
            "cursor": ["", "1", "-1", "9" * 18, "9" * 19],
            "expired_handle": [HANDLE, "", "x"],
            "log": ["full", "changes_only", "none"],
            "subset__where": ["x", "id = '1'"],
            "subset__order_by": ["id", "id,", "nope"],
            "subset__limit": ["1", "-1"],
            "secret": ["x"],
        }
        names = rng.sample(list(values), rng.randint(0, 6))
        names += ["offset"] if rng.random() < 0.8 else []
        names += ["shape"] if rng.random() < 0.5 else []
        parts = []
        for name in names:
            value = rng.choice(values[name]) if rng.random() < 0.8 else self.text()
            encoded = quote(value, errors="surrogatepass", safe="" if rng.random() < 0.8 else "&=%+'\"")
            encoded_name = (
                name if rng.random() < 0.95 else rng.choice([name.upper(), f"{name}[]", f"%{ord(name[0]):x}{name[1:]}"])
            )
            parts.append(f"{encoded_name}={encoded}" if rng.random() < 0.98 else rng.choice([encoded, "&", "=", "%"]))
        rng.shuffle(parts)
        return "&".join(parts).encode("utf-8", "surrogatepass")

    async def send(self, server: Server) -> int:
        rng = self.rng
        path = rng.choice(
            [b"/v1/shape"] * 20 + [b"/", b"//v1/shape", b"/v1/shape/", b"/v1/sh%61pe", b"/healthz", b"\xff"]
        )
        method = rng.choice(["GET"] * 15 + ["HEAD", "OPTIONS", "POST", "BREW"])
        host = rng.choice([b"localhost"] * 15 + [b"127.0.0.1:1", b"evil", b"", b"[", b"\xff"])
        headers = {b"host": host, b"origin": self.text().encode("utf-8", "replace"), b"if-none-match": b'"x", W/"y"'}
        response = await server.request(self.query(), path=path, method=method, headers=headers)
        if response.status >= 400:
            assert method == "HEAD" or b"Traceback" not in response.body
            is_kept = response.status in {409, 410}
            assert response.headers["cache-control"] == ("public, max-age=5" if is_kept else "no-store")
        return response.status


async def test_ten_thousand_malformed_requests_are_refused(log: str) -> None:
    """Each gets its answer, none a 500, and nothing stays: no wait, no read, no shape that is looked for."""
    before = asyncio.all_tasks()
    async with serving(log, live_s=0.01, allow_origins=("https://a.example",)) as server:
        for name in ("users", "dear"):
            await server.served.parts.poller.shape(name)
        fuzzer = _Fuzzer(1)
        # A look for each unknown shape would take most of the time; it is tested elsewhere.
        server.served.parts.poller._fresh_poll = _nothing  # type: ignore[method-assign]
        statuses = [await fuzzer.send(server) for _ in range(10_000)]
        assert set(statuses) <= {200, 204, 304, 400, 404, 405, 409, 421}
        assert {200, 204, 400, 404, 405, 421} <= set(statuses)
        parts = server.served.parts
        assert (parts.poller.waiting, parts.log_flights.running, parts.row_flights.running) == (0, 0, 0)
        assert parts.poller.polled_shapes <= 2
        assert len(parts.pages) + len(parts.states) <= 4
        # The last one's wait for its client has been cancelled; on Python 3.13 it ends in the loop's next turn.
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before
        assert (await server.get({"shape": "users", "offset": "-1"})).status == 200


async def _nothing() -> None:
    pass


async def test_known_definition_waits_for_no_other(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a condition is being read, known ones are answered; too many that are not get a 503."""
    let, of = threading.Event(), Definitions.target

    def slow(self: Definitions, asked: RequestedDefinition, on_demand: Container[TableName]) -> Target | None:
        if asked.where != "price > 100":
            let.wait(30)
        return of(self, asked, on_demand)

    monkeypatch.setattr(Definitions, "target", slow)
    async with serving(log) as server:
        query = {"table": "users", "where": "price > 100", "offset": "-1"}
        flights = server.served.parts.definition_flights
        flights._limit = 2
        assert (await server.get(query)).status == 200
        waiting = [asyncio.create_task(server.get({**query, "where": f"price > {n}"})) for n in range(2)]
        while flights.running < 2:
            await asyncio.sleep(0.01)
        assert (await asyncio.wait_for(server.get(query), 5)).status == 200
        assert (await server.get({**query, "where": "price > 7"})).status == 503
        let.set()
        assert [(await each).status for each in waiting] == [404, 404]
        assert flights.running == 0


async def test_definition_is_served_as_its_shape(log: str) -> None:
    """Over HTTP, as Electric's client sends it; and a 404 that says why, where there is none."""
    async with serving(log) as server:
        query = {"table": "users", "where": "price > $1", "params[1]": "100", "offset": "-1"}
        assert (await server.get(query)).status == 200
        response = await server.get({**query, "params[1]": "101"})
        message = "there is no shape that is defined so; shapes are defined by the operator"
        assert (response.status, response.json) == (404, {"message": message})
        assert (await server.request(urlencode({**query, "where": "price >"}).encode())).status == 400
