"""nginx and Varnish in front of the server, with the configurations of ``examples/caching_proxy`` except for ports."""

import asyncio
import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.caching_proxy import PROXIES, Proxied, check_events, follow, served_behind
from tests.support.seeds import in_turn
from tests.support.shape_log_rows import append, commit, item
from tests.support.waiting import wait_until


@pytest.fixture(params=in_turn(PROXIES))
def proxied(request: pytest.FixtureRequest) -> Iterator[Proxied]:
    with served_behind(request.param) as found:
        yield found


@pytest.fixture(scope="module", params=in_turn(PROXIES))
def unchanged(request: pytest.FixtureRequest) -> Iterator[Proxied]:
    """For tests that write nothing."""
    with served_behind(request.param) as found:
        yield found


def test_thousand_live_clients_are_a_handful_of_requests_for_each_change(proxied: Proxied) -> None:
    """Each gets each change, in order, and the server is asked a few times for all of them."""
    counts = [asked for asked, _ in asyncio.run(follow(proxied, clients=1_000, changes=3))]
    assert max(counts) <= 8, f"requests that reached the server for each change: {counts}"


def test_events_pass_the_gatekeeper_as_they_come(proxied: Proxied) -> None:
    check_events(proxied, proxied.keeper, "/orders?", "orders")


@pytest.mark.parametrize(
    "address",
    [
        *("//v1/shape?shape=users&offset=-1", "/v1//shape?shape=users&offset=-1"),
        *("/v1/%73hape?shape=users&offset=-1", "/v1%2Fshape?shape=users&offset=-1"),
        *("/./v1/shape?shape=users&offset=-1", "/x/../v1/shape?shape=users&offset=-1"),
        *("/v1/shape/?shape=users&offset=-1", "/v1/shape;a?shape=users&offset=-1"),
        *("/V1/shape?shape=users&offset=-1", "/metrics", "/readyz"),
    ],
)
def test_only_the_path_as_it_is_written_is_passed_on(unchanged: Proxied, address: str) -> None:
    """nginx compares a path that it has decoded and shortened, but sends the one it got; the server takes one only."""
    assert unchanged.get(address).status in {400, 404}


@pytest.mark.parametrize(
    "address",
    [
        *("/orders?offset=-1&shape=users", "/orders?shape=users&offset=-1"),
        *("/orders?offset=-1&table=public.users", "/orders?offset=-1&handle=x%26shape%3Dusers"),
        *("/orders?offset=-1%26shape=users", "/orders?offset=-1&offset=now&shape=users"),
        *("/orders?offset=-1&log=full%23&shape=users", "/orders?offset=-1;shape=users"),
        "/orders?offset=-1&cursor=1%0d%0aGET%20/v1/shape",
        *("/orders?&&offset=-1&sHape=users&live%5Fsse=true", "//orders?offset=-1&shape=users"),
        *("/%6frders?offset=-1&shape=users", "/orders/../v1/shape?shape=users&offset=-1"),
        *("/v1/shape?shape=users&offset=-1", "/?/v1/shape?shape=users&offset=-1"),
    ],
)
def test_no_spelling_leads_around_the_gatekeeper(unchanged: Proxied, address: str) -> None:
    """Whatever a user sends, it is the one shape that is answered, or an error."""
    response: Any = unchanged.get(address, port=unchanged.keeper)
    assert response.status in {200, 400, 404}
    if response.status == 200:
        assert [message.get("key") for message in json.loads(response.body)] == ["b", None]


def test_gatekeeper_lets_a_client_follow(proxied: Proxied) -> None:
    """It passes on all that a client needs, and what several ask for is asked for once."""
    first: Any = proxied.get("/orders?offset=-1", port=proxied.keeper)
    assert [message.get("key") for message in json.loads(first.body)] == ["b", None]
    query = f"offset={first.headers['electric-offset']}&handle={first.headers['electric-handle']}"
    append(proxied.log, [item((20, 0), "delete", "b", shape_id="orders"), commit(20, shape_id="orders")])
    live: Any = proxied.get(f"/orders?{query}&live=true&cursor=1", port=proxied.keeper)
    assert json.loads(live.body)[0]["headers"]["operation"] == "delete"
    before = proxied.asked()
    assert proxied.get(f"/orders?x=1&{query}&live=true&cursor=1", port=proxied.keeper).status == 200
    assert proxied.asked() == before


def test_rows_are_compressed_for_those_who_take_that(proxied: Proxied) -> None:
    """They are the same rows, and known by their etag, which says that it is weak then."""
    rows = [item((20, 2 * n), "insert", f"k{n}", {"id": str(n)}) for n in range(200)]
    append(proxied.log, [*rows, commit(20)])
    address = "/v1/shape?shape=users&offset=-1"
    wait_until(lambda: len(json.loads(proxied.get(address).body)) > 200, "the rows are there", 60, pause_s=0.5)  # type: ignore[attr-defined]
    plain, packed = proxied.get(address), proxied.get(address, {"accept-encoding": "gzip"})
    assert (plain.headers["content-encoding"], packed.headers["content-encoding"]) == (None, "gzip")
    assert "accept-encoding" in packed.headers["vary"].lower()
    assert gzip.decompress(packed.body) == plain.body  # type: ignore[attr-defined]
    assert len(packed.body) * 5 < len(plain.body)  # type: ignore[attr-defined]
    assert packed.headers["etag"] == f"W/{plain.headers['etag'].removeprefix('W/')}"
    known = proxied.get(address, {"accept-encoding": "gzip", "if-none-match": packed.headers["etag"]})
    assert (known.status, known.body) == (304, b"")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        *(("PUT", {}, 405), ("PURGE", {}, 405), ("HEAD", {}, 200)),
        *(("GET", {"content-length": "2"}, 413), ("OPTIONS", {"content-length": "2"}, 413)),
    ],
)
def test_what_the_server_refuses_does_not_pass(
    unchanged: Proxied, method: str, headers: dict[str, str], status: int
) -> None:
    """A method or a body that another one could read as a second request, at either port."""
    for port, address in ((unchanged.port, "/v1/shape?shape=users&offset=-1"), (unchanged.keeper, "/orders?offset=-1")):
        response = unchanged.get(address, headers, port, method=method, body=b"xy" if headers else b"")
        assert response.status == status


def test_gatekeeper_passes_subsets_of_its_shape(unchanged: Proxied) -> None:
    """By GET and by POST; neither an address nor a body can name another shape."""
    length = {"content-type": "application/json"}

    def post(address: str, document: object) -> Any:
        body = json.dumps(document).encode()
        told = {**length, "content-length": str(len(body))}
        return unchanged.get(address, told, unchanged.keeper, method="POST", body=body)

    where = "subset__where=id%20%3D%20%241&subset__params=%7B%221%22%3A%222%22%7D"
    by_get: Any = unchanged.get(f"/orders?offset=-1&{where}&subset__order_by=id&subset__limit=2", port=unchanged.keeper)
    by_post = post("/orders?offset=-1&shape=users", {"where": "id = $1", "params": {"1": "2"}})
    for answer in (by_get, by_post):
        assert [each["key"] for each in json.loads(answer.body)["data"]] == ["b"]
    assert json.loads(post("/orders?offset=-1", {"where": "id = '1'"}).body)["data"] == []
    for other in ({"shape": "users"}, {"table": "public.users"}, {"subset__shape": "users"}):
        assert post("/orders?offset=-1", other).status == 400
    assert (
        unchanged.get(
            "/v1/shape?shape=users", length | {"content-length": "2"}, unchanged.keeper, method="POST", body=b"{}"
        ).status
        == 404
    )


def test_client_gets_past_an_answer_that_is_kept(unchanged: Proxied) -> None:
    """Electric's client adds ``cache-buster`` to an address whose answer it takes for an outdated one."""
    for port, address in ((unchanged.port, "/v1/shape?shape=users&offset=-1"), (unchanged.keeper, "/orders?offset=-1")):
        for asked in (1, 0):
            before = unchanged.asked()
            assert unchanged.get(f"{address}&cache-buster=1", port=port).status == 200
            assert unchanged.asked() - before == asked
        before = unchanged.asked()
        assert unchanged.get(f"{address}&cache-buster=2", port=port).status == 200
        assert unchanged.asked() - before == 1


def test_page_follows_many_shapes_over_one_connection(proxied: Proxied) -> None:
    """With HTTP/2, where a browser would open no more than six connections, and each waits for a change."""
    first = proxied.get("/v1/shape?shape=users&offset=-1")
    address = f"/v1/shape?shape=users&offset=10_0&live=true&handle={first.headers['electric-handle']}"
    command = ["node", str(Path(__file__).with_name("many_streams.mjs")), str(proxied.http2), address, "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        try:
            wait_until(lambda: proxied.waiting() == 20, "all wait for a change", 60, pause_s=0.2)
            append(proxied.log, [item((20, 0), "insert", "c", {"id": "3"}), commit(20)])
            answers = json.loads(client.communicate(timeout=60)[0])
        finally:
            client.kill()
    assert [answer["status"] for answer in answers] == [200] * 20
    assert all('"id":"3"' in answer["body"] for answer in answers)
