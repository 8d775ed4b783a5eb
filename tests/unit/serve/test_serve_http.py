"""What the server says to requests that are written as HTTP allows, or does not; over its own socket."""

import re
import socket
from collections.abc import Iterator

import pytest

from tests.support.sample_registry import users_log
from tests.support.serve_process import Process, configuration
from tests.support.shape_log_rows import append, commit, item

_SHAPE = b"/v1/shape?shape=users&offset=-1"
_HOST = b"host: localhost\r\n"
_NEXT = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("serve")
    log = users_log(folder)
    append(log, [item((10, 0), "insert", "a", {"id": "1"}), commit(10)])
    found = Process(configuration(folder, log, allow_origins=["https://a.example"]))
    yield found
    found.process.kill()
    found.process.wait()


def _statuses(server: Process, *requests: bytes) -> list[int]:
    """Those of all answers on one connection, which the server closes in the end."""
    with server.open() as client:
        for request in requests:
            client.sendall(request)
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", _all(client))]


def _all(client: socket.socket) -> bytes:
    found = b""
    while data := client.recv(65_536):
        found += data
    return found


@pytest.mark.parametrize(
    ("request_", "statuses"),
    [
        (b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"expect: 100-continue\r\n\r\n", [100, 200, 200]),
        (b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"range: bytes=0-3\r\n\r\n", [200, 200]),
        (b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"upgrade: h2c\r\nconnection: upgrade\r\n\r\n", [200, 200]),
        (b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b'if-none-match: *\r\nif-none-match: "x"\r\n\r\n', [304, 200]),
        (b"GET /healthz HTTP/1.1\r\n" + _HOST + b"\r\n" + b"GET /x HTTP/1.1\r\n" + _HOST + b"\r\n", [200, 404, 200]),
        (b"GET /v1/shape HTTP/1.1\r\n" + _HOST + b"\r\n", [400, 200]),
        (b"POST " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"content-length: 0\r\n\r\n", [200, 200]),
        (b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n", [404, 200]),
        (b"GET http://localhost" + _SHAPE + b" HTTP/1.1\r\nhost: a.example\r\n\r\n", [200, 200]),
        (b"GET HTTP://LOCALHOST:80/healthz HTTP/1.1\r\n" + _HOST + b"\r\n", [200, 200]),
        (b"GET http://a.example" + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"\r\n", [421, 200]),
        (b"GET http://u@localhost" + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"\r\n", [404, 200]),
        (b"GET http://localhost/" + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"\r\n", [404, 200]),
        (b"GET http://localhost/x/.." + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"\r\n", [404, 200]),
        (b"GET http://localhost/%76" + _SHAPE[2:] + b" HTTP/1.1\r\n" + _HOST + b"\r\n", [404, 200]),
        (b"GET http://localhost?" + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"\r\n", [404, 200]),
        (b"GET //localhost" + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"\r\n", [404, 200]),
    ],
)
def test_connection_is_used_again_after_any_answer(server: Process, request_: bytes, statuses: list[int]) -> None:
    """Also after a refusal; a range and an upgrade are ignored, as a server may.

    A target that is a whole address counts as its host and its path, which is compared as any other.
    """
    assert _statuses(server, request_, _NEXT) == statuses


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET " + _SHAPE + b" HTTP/1.0\r\n\r\n", 200),
        (b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"expect: 100-continue\r\ncontent-length: 5\r\n\r\n", 413),
        (b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"content-length: 5\r\n\r\nhello", 413),
        (b"POST " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"content-length: 5\r\n\r\nhello", 400),
        (b"POST " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"content-length: 2\r\n\r\n{}", 200),
        (b"POST " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 200),
        (b"POST " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"content-length: 70000\r\n\r\n" + b" " * 70_000, 413),
        (b"PUT " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 405),
        (b"POST /x HTTP/1.1\r\n" + _HOST + b"content-length: 5\r\n\r\nhello", 404),
        (b"POST " + _SHAPE + b" HTTP/1.1\r\nhost: a.example\r\ncontent-length: 5\r\n\r\nhello", 421),
        (b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + _HOST + b"\r\n", 400),
        (b"GET " + _SHAPE + b" HTTP/1.1\r\nhost : localhost\r\n\r\n", 400),
        (b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"x: a\0b\r\n\r\n", 400),
        (b"GET /v1/shape?shape=us\xc3\xa9rs HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
        (b"GET /v1/shape\r\n\r\n", 400),
    ],
)
def test_nothing_that_follows_is_read_as_a_request(server: Process, request_: bytes, status: int) -> None:
    """Where a proxy may see another end of the request than the server does, the connection ends with the answer."""
    assert _statuses(server, request_ + _NEXT) == [status]


@pytest.mark.parametrize(
    "query",
    [
        *(b"shape=users&offset=-1&shape=users", b"shape=users&offset=-1&%73hape=users"),
        *(b"shape=users%00&offset=-1", b"shape=users&offset%00=-1", b"shape=%c1%b5sers&offset=-1"),
        *(b"shape=users&offset=-1%", b"SHAPE=users&offset=-1", b"shape%5B%5D=users&offset=-1"),
        *(b"shape=users;offset=-1", b"shape=users&offset=-1;shape=users", b"shape=users%26offset=-1"),
        b"shape=users&table=users&offset=-1",
    ],
)
def test_no_query_means_a_shape_in_two_ways(server: Process, query: bytes) -> None:
    """Repeated, in another case, as an array, with NUL, overlong UTF-8 or a semicolon: refused, and nothing is kept."""
    status, headers, _ = server.get(f"/v1/shape?{query.decode()}")
    assert (status, headers["cache-control"]) == (400, "no-store")


def test_answers_name_what_they_vary_by(server: Process) -> None:
    """A page's origin, also where it is not allowed, in errors and before the request itself."""
    for request_ in (
        b"GET " + _SHAPE,
        b"HEAD " + _SHAPE,
        b"GET /v1/shape",
        b"OPTIONS " + _SHAPE,
    ):
        with server.open() as client:
            client.sendall(
                request_ + b" HTTP/1.1\r\n" + _HOST + b"origin: https://b.example\r\nconnection: close\r\n\r\n"
            )
            answer = _all(client).lower()
        assert b"\r\nvary: origin\r\n" in answer
        assert b"access-control-allow-origin" not in answer


def test_head_says_what_get_would(server: Process) -> None:
    """With the same headers and length, and without a body."""
    found = []
    for method in (b"GET ", b"HEAD "):
        with server.open() as client:
            client.sendall(method + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"connection: close\r\n\r\n")
            head, _, body = _all(client).partition(b"\r\n\r\n")
        lines = {line for line in head.split(b"\r\n") if not line.startswith(b"date:")}
        found.append((lines, len(body)))
    assert found[0][0] == found[1][0]
    assert found[0][1] > 100
    assert found[1][1] == 0


def test_client_that_sends_nothing_more_has_gone(server: Process) -> None:
    """Its connection looks as one that was closed, which must not be waited for: not 20 s for a change."""
    with server.open() as client:
        client.sendall(b"GET " + _SHAPE + b" HTTP/1.1\r\n" + _HOST + b"\r\n")
        answer = client.recv(65_536)
        found = re.search(rb"electric-handle: (\S+)", answer)
        assert found is not None
    with server.open() as client:
        query = b"shape=users&offset=10_0&live=true&handle=" + found[1]
        client.sendall(b"GET /v1/shape?" + query + b" HTTP/1.1\r\n" + _HOST + b"\r\n")
        client.shutdown(socket.SHUT_WR)
        client.settimeout(10)
        assert client.recv(1) == b""
