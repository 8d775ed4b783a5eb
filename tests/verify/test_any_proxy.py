"""What holds behind each caching proxy of ``examples/caching_proxy``, also those without a gatekeeper."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlencode

import pytest

from tests.support.caching_proxy import (
    PLAIN_PROXIES,
    PROXIES,
    WIDE_COLUMNS,
    Proxied,
    check_events,
    follow,
    served_behind,
)
from tests.support.seeds import in_turn
from tests.support.shape_log_rows import append, commit, item
from tests.support.waiting import wait_until


@pytest.fixture(params=in_turn((*PROXIES, *PLAIN_PROXIES)))
def proxied(request: pytest.FixtureRequest) -> Iterator[Proxied]:
    with served_behind(request.param) as found:
        yield found


@pytest.mark.parametrize("proxy", in_turn(PLAIN_PROXIES))
def test_each_client_gets_each_change(proxy: str) -> None:
    """In order. Squid lets clients wait for each other; behind the others each is a request for each change."""
    clients, least, most = {"squid": (1_000, 1, 8), "haproxy": (200, 190, 210), "apache": (20, 15, 25)}[proxy]
    with served_behind(proxy) as proxied:
        counts = [asked for asked, _ in asyncio.run(follow(proxied, clients=clients, changes=3))]
    assert least <= min(counts), f"requests that reached the server for each change: {counts}"
    assert max(counts) <= most, f"requests that reached the server for each change: {counts}"


async def test_client_that_leaves_takes_no_answer_from_others(proxied: Proxied) -> None:
    """Also if it was the first to ask, whose request the others wait for."""
    first = proxied.get("/v1/shape?shape=users&offset=-1")
    address = f"/v1/shape?shape=users&offset=10_0&live=true&handle={first.headers['electric-handle']}"
    with closing(socket.create_connection(("127.0.0.1", proxied.port), timeout=20)) as leaves:
        leaves.sendall(f"GET {address} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await asyncio.to_thread(wait_until, lambda: proxied.waiting() == 1, "the first waits", 60, pause_s=0.1)
        stays = [asyncio.create_task(asyncio.to_thread(proxied.get, address)) for _ in range(5)]
        await asyncio.sleep(1)
    await asyncio.sleep(0.5)
    append(proxied.log, [item((20, 0), "insert", "c", {"id": "3"}), commit(20)])
    for answer in await asyncio.wait_for(asyncio.gather(*stays), 30):
        assert answer.status == 200
        assert b'"id":"3"' in answer.body  # type: ignore[attr-defined]


def test_rows_are_asked_for_once_and_known_ones_not_sent(proxied: Proxied) -> None:
    """The proxy keeps what the server says may be kept, and answers 304 by its etag."""
    first = proxied.get("/v1/shape?shape=users&offset=-1")
    before = proxied.asked()
    again = [proxied.get("/v1/shape?shape=users&offset=-1") for _ in range(5)]
    known = proxied.get("/v1/shape?shape=users&offset=-1", {"if-none-match": first.headers["etag"]})
    assert {each.body for each in again} == {first.body}  # type: ignore[attr-defined]
    assert (known.status, known.body) == (304, b"")  # type: ignore[attr-defined]
    assert proxied.asked() == before
    other = proxied.get("/v1/shape?shape=users&offset=-1", {"if-none-match": '"other"'})
    assert (other.status, other.headers["etag"]) == (200, first.headers["etag"])


async def test_all_who_must_begin_again_are_told_at_once(proxied: Proxied) -> None:
    """The 409 after a truncate is kept for a moment, so that nobody waits for those before; then each gets the rows."""
    first = proxied.get("/v1/shape?shape=users&offset=-1")
    old = first.headers["electric-handle"]
    live = f"/v1/shape?shape=users&offset=10_0&live=true&handle={old}"

    async def ask(address: str) -> tuple[int, dict[str, str]]:
        response = await asyncio.to_thread(proxied.get, address)
        return response.status, {name.lower(): value for name, value in response.getheaders()}

    waiting = [asyncio.create_task(ask(live)) for _ in range(25)]
    await asyncio.sleep(1)
    append(proxied.log, [item((20, 0), "truncate"), item((20, 2), "insert", "c", {"id": "3"}), commit(20)])
    began = time.monotonic()
    answers = await asyncio.gather(*waiting)
    assert {status for status, _ in answers} == {409}
    new = {headers["electric-handle"] for _, headers in answers}
    assert len(new) == 1
    assert old not in new
    (handle,) = new
    start = f"/v1/shape?shape=users&offset=-1&handle={handle}&expired_handle={old}"
    rows = await asyncio.gather(*(ask(start) for _ in range(25)))
    # Only a handle to begin with has what its client was shown.
    assert {(status, headers["electric-handle"]) for status, headers in rows} == {(200, handle.removesuffix("-10"))}
    assert handle.endswith("-10")
    assert time.monotonic() - began < 15


def test_events_are_passed_on_as_they_come(proxied: Proxied) -> None:
    check_events(proxied, proxied.port, "/v1/shape?shape=users&", "users")


def test_types_of_many_columns_pass(proxied: Proxied) -> None:
    """All are in one header, which is larger than proxies take by themselves."""
    response = proxied.get("/v1/shape?shape=wide&offset=now")
    assert response.status == 200
    assert len(json.loads(response.headers["electric-schema"])) == WIDE_COLUMNS


def test_long_address_passes(proxied: Proxied, request: pytest.FixtureRequest) -> None:
    """So that it is the server that says there is no such shape; but Squid takes 8 KB, and no setting changes that."""
    status = 400 if request.node.callspec.params["proxied"] == "squid" else 404
    where = " OR ".join(f"column_1 = '{n}'" for n in range(400))
    assert len(where) < 8_000
    response = proxied.get(f"/v1/shape?{urlencode({'table': 'wide', 'where': where, 'offset': 'now'})}")
    assert response.status == status
    assert (b"defined" in response.body) == (status == 404)  # type: ignore[attr-defined]


def post(proxied: Proxied, address: str, body: bytes) -> http.client.HTTPResponse:
    length = {"content-length": str(len(body)), "content-type": "application/json"}
    return proxied.get(address, length, method="POST", body=body)


def test_each_post_of_a_subset_reaches_the_server(proxied: Proxied) -> None:
    """None is answered from the cache, and none is kept for another one, or for the GET of the same address."""
    address = "/v1/shape?shape=users&offset=-1"
    whole = proxied.get(address)
    for number, rows in (("1", 1), ("2", 0), ("1", 1)):
        before = proxied.asked()
        found = post(proxied, address, json.dumps({"where": "id = $1", "params": {"1": number}}).encode())
        assert (found.status, found.headers["electric-snapshot"]) == (200, "true")
        assert len(json.loads(found.body)["data"]) == rows  # type: ignore[attr-defined]
        assert proxied.asked() == before + 1
    assert proxied.get(address).body == whole.body  # type: ignore[attr-defined]


def test_bodies_are_bounded(proxied: Proxied) -> None:
    """A subset's body has up to 64 KiB; a request of another method has none, nor has one without a length."""
    address = "/v1/shape?shape=users&offset=-1"
    known = b"id = '1'".ljust(7_000)
    # The server takes it all, and says what is wrong with it.
    most = json.dumps({"where": known.decode(), "order_by": "i" * 57_000}).encode()
    assert len(most) < 1 << 16
    answer = post(proxied, address, most)
    assert (answer.status, b"order_by" in answer.body) == (400, True)  # type: ignore[attr-defined]
    assert post(proxied, address, most.ljust((1 << 16) + 1)).status == 413
    for method in ("GET", "HEAD", "OPTIONS"):
        refused = proxied.get(address, {"content-length": "2"}, method=method, body=b"xy")
        assert refused.status in {400, 411, 413}, method
    assert proxied.get(address, method="PUT").status in {403, 405}


def test_subsets_of_beginning_clients_are_in_nobodys_way(proxied: Proxied) -> None:
    """Their answers are not kept, so each is asked for."""
    address = "/v1/shape?shape=users&offset=-1&subset__limit=1"
    for _ in range(2):
        before = proxied.asked()
        assert len(json.loads(proxied.get(address).body)["data"]) == 1  # type: ignore[attr-defined]
        assert proxied.asked() == before + 1
