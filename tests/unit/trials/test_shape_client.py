"""A client of shapes over HTTP, and the answers that it refuses."""

import json
from typing import Any

import pytest

from flushtracker.errors import DecodeError
from flushtracker.trials.loop_trial.shape_client import ShapeClient

HEADERS = {"electric-handle": "h1", "electric-offset": "10_0", "electric-schema": "{}"}
UP_TO_DATE = {"headers": {"control": "up-to-date", "global_last_seen_lsn": "12"}}
LIVE = {**HEADERS, "electric-up-to-date": "true", "electric-cursor": "1", "electric-offset": "20_0"}


def change(operation: str, key: str, **value: str) -> dict[str, Any]:
    return {"key": key, "value": value, "headers": {"operation": operation}}


def take(client: ShapeClient, headers: dict[str, str], *messages: object, status: int = 200) -> None:
    client.take(status, headers, json.dumps(messages).encode(), live=True)


@pytest.fixture
def client() -> ShapeClient:
    """It has the row a, and everything up to 12."""
    found = ShapeClient({"shape": "s"})
    assert found.query(live=True) == {"shape": "s", "offset": "-1", "log": "full"}
    take(found, HEADERS, change("insert", "a", id="1", note="x"))
    assert not found.is_up_to_date
    take(found, {**HEADERS, "electric-up-to-date": "true"}, UP_TO_DATE)
    return found


def test_client_keeps_the_rows_and_asks_for_what_follows(client: ShapeClient) -> None:
    assert (client.tx, client.seen_lsn, client.is_up_to_date) == (10, 12, True)
    take(client, LIVE, change("update", "a", note="y"), change("insert", "b", id="2"), UP_TO_DATE)
    assert client.rows == {"a": {"id": "1", "note": "y"}, "b": {"id": "2"}}
    take(client, {**LIVE, "electric-cursor": "2"}, change("delete", "a"), UP_TO_DATE)
    assert client.rows == {"b": {"id": "2"}}
    assert client.query(live=True) == {
        "shape": "s",
        "offset": "20_0",
        "log": "full",
        "handle": "h1",
        "live": "true",
        "cursor": "2",
    }


def test_client_begins_again_with_the_handle_that_it_is_told(client: ShapeClient) -> None:
    take(client, {"electric-handle": "h2"}, {"headers": {"control": "must-refetch"}}, status=409)
    assert (client.rows, client.is_up_to_date, client.conflicts) == ({}, False, 1)
    expected = {"shape": "s", "offset": "-1", "log": "full", "handle": "h2", "expired_handle": "h1"}
    assert client.query(live=True) == expected


@pytest.mark.parametrize(
    ("headers", "messages", "fact"),
    [
        (LIVE, [change("insert", "a"), UP_TO_DATE], "insert of a, whose row the client has"),
        (LIVE, [change("update", "b"), UP_TO_DATE], "update of b, whose row the client lacks"),
        (LIVE, [change("delete", "b"), UP_TO_DATE], "delete of b, whose row the client lacks"),
        (LIVE, [change("merge", "a"), UP_TO_DATE], "there is an operation merge"),
        (LIVE, [{"headers": {"control": "x"}}], "there is a control message x"),
        (LIVE, [change("update", "a")], "header and messages differ in up-to-date"),
        (
            {**LIVE, "electric-offset": "10_0", "electric-cursor": ""},
            [UP_TO_DATE],
            "the next address would be the last",
        ),
        (HEADERS, [UP_TO_DATE], "only an answer to a live request has a cursor"),
        ({"electric-handle": "h1"}, [], "an answer lacks electric-schema"),
        ({}, [], "KeyError: 'electric-handle'"),
        (LIVE, ["x"], "TypeError"),
    ],
)
def test_client_refuses_what_breaks_the_protocol(
    client: ShapeClient, headers: dict[str, str], messages: list[object], fact: str
) -> None:
    with pytest.raises(DecodeError, match=rf"^client of \{{'shape': 's'\}}, at 1?2?0_0 of h1: {fact}"):
        take(client, headers, *messages)


@pytest.mark.parametrize("handle", ["h0", "h1"])
def test_client_refuses_a_409_with_a_handle_that_it_had(client: ShapeClient, handle: str) -> None:
    client.expired = "h0"
    with pytest.raises(DecodeError, match="a 409 has the handle that the client has"):
        take(client, {"electric-handle": handle}, {"headers": {"control": "must-refetch"}}, status=409)
