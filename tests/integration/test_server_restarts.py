"""Restarts of the server while capture runs: each way to shut it down, with load, and a minor upgrade between them."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from flushtracker.errors import PostgresUnavailableError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.tracking.acks.ack_reader import AckReader
from tests.support.capture_rig import INSERT_USER, CaptureRig
from tests.support.insert_load import InsertLoad, acknowledge_some, published_ids, stored_ids
from tests.support.major_upgrade import old_server
from tests.support.server_versions import binaries_of, runs_here

_ROUNDS: Final = 2
_NEEDS_X86: Final = pytest.mark.skipif(not runs_here(), reason="the server is built for 64-bit x86 Linux")
_SHUTTING_DOWN: Final = "LOG:  shutting down"
_WAS_SHUT_DOWN: Final = "database system was shut down at"
"""The server says so when it starts, unless it has crashed."""


@pytest.fixture
def postgres(postgres_folder: Path) -> Iterator[LocalPostgres]:
    """A server of PostgreSQL 17, with programs of an earlier minor version than ``binaries_of(17)``."""
    with old_server(postgres_folder / "server") as server:
        yield server


def shut_down(server: LocalPostgres, mode: str, *options: str) -> None:
    """By pg_ctl, which fails if the server has not ended in time: a walsender may hold it back."""
    server.run("pg_ctl", "stop", "--pgdata", str(server.data), "--mode", mode, "--timeout", "20", *options)


def version(server: LocalPostgres) -> str:
    ((found,),) = server.execute("SHOW server_version")
    return str(found)


def wait_for_connections(rig: CaptureRig, count: int) -> None:
    """Wait until so many connections of capture have published something."""
    rig.wait(lambda: [event.start for event in rig.fragments()].count(True) >= count, "capture to connect again")


@pytest.mark.parametrize("how", ["immediate", pytest.param("minor upgrade", marks=_NEEDS_X86)])
def test_restarts_under_load_lose_and_repeat_nothing_and_confirm_nothing_early(rig: CaptureRig, how: str) -> None:
    """Capture goes on by itself, with the same source, although shapes never have everything when the server ends."""
    rng = random.Random(7)  # noqa: S311  reproducible
    server, last_ack, first = rig.server, 0, version(rig.server)
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    with InsertLoad(lambda: server, 7):
        for number in range(_ROUNDS):
            for _ in range(3):
                last_ack = acknowledge_some(rig, last_ack, rng)
                Event().wait(rng.random() / 2)
            if how == "immediate":
                shut_down(server, "immediate")
            else:
                shut_down(server, "fast")
                server.binaries = binaries_of(17)
            server.stop()
            server.start()
            assert rig.confirmed_lsn() <= last_ack + 1
            wait_for_connections(rig, number + 2)
    rig.execute_and_wait(INSERT_USER)
    last_ack = rig.acknowledge_all()
    capture.stop()
    assert (version(server) == first) is (how == "immediate")
    assert rig.source_of_fragments() == rig.source()
    assert sorted(published_ids(rig)) == stored_ids(server)
    assert AckReader(str(rig.acks), {}).last_ack(rig.source()) == last_ack
    assert server.log.read_text().count(_WAS_SHUT_DOWN) == (1 if how == "immediate" else 1 + _ROUNDS)


def test_a_smart_shutdown_waits_for_capture_which_goes_on_until_it_is_stopped(rig: CaptureRig) -> None:
    """It waits for every client, and capture is one. What is written meanwhile is captured."""
    server = rig.server
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    with closing(server.connect()) as session:
        shut_down(server, "smart", "--no-wait")
        rig.wait(lambda: is_refused(server), "the server to refuse clients")
        rows(session, INSERT_USER)
        rig.wait(lambda: len(published_ids(rig)) == 2, "the row of a client that was there before")
    assert _SHUTTING_DOWN not in server.log.read_text()
    capture.stop()
    rig.wait(lambda: not (server.data / "postmaster.pid").exists(), "the end of the server")
    assert _SHUTTING_DOWN in server.log.read_text()
    server.stop()
    server.start()
    rig.capture_once()
    assert sorted(published_ids(rig)) == stored_ids(server)


def is_refused(server: LocalPostgres) -> bool:
    try:
        server.connect().close()
    except PostgresUnavailableError as error:
        return "shutting down" in str(error)
    return False
