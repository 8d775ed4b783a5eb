"""What of several standbys is told: one that is ready is enough, but another primary is always named."""

import pytest

from flushtracker.errors import PostgresUnavailableError
from flushtracker.postgres import failover_lacks
from flushtracker.postgres.connection import Connection


def connect(_: object) -> Connection:
    raise AssertionError("no server is asked here")


def lacks(monkeypatch: pytest.MonkeyPatch, **answers: str | None) -> list[str]:
    """What is told if the hosts answer so; the name of a host that is away is its answer."""

    def answer(host: dict[str, str], *_: object) -> str | None:
        found = answers[host["host"]]
        if found == "away":
            raise PostgresUnavailableError("gone")
        return found

    monkeypatch.setattr(failover_lacks, "_standby_lacks", answer)
    return failover_lacks._standbys_lack([{"host": host} for host in answers], "s", connect)


def test_a_primary_beside_a_good_standby_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standby that could be promoted would hide the old primary that still runs, whichever is asked first."""
    told = ["b port 5432 is another primary"]
    assert lacks(monkeypatch, a=None, b="is another primary") == told
    assert lacks(monkeypatch, b="is another primary", a=None) == told
    assert lacks(monkeypatch, c="lacks x", b="is another primary", a=None) == told
    assert lacks(monkeypatch, c="lacks x", b="is another primary") == [*told, "standby c port 5432 lacks x"]


def test_one_good_standby_is_enough_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lacks(monkeypatch, a="lacks x", b="away", c=None) == []
    assert lacks(monkeypatch, a="lacks x", b="away") == [
        "standby a port 5432 lacks x",
        "standby b port 5432 does not answer: gone",
    ]
