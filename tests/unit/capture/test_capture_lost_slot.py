"""Capture whose slot is lost: it ends, but not before monitoring could read that."""

import logging
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from flushtracker.capture import capture_loop
from flushtracker.errors import LostSlotError
from flushtracker.local.free_ports import free_port
from flushtracker.postgres.slot import SlotFacts
from flushtracker.status.capture_status import SlotStatus
from tests.support import fake_world
from tests.support.fake_world import CONFIRMED, Connection, FakeWorld
from tests.support.waiting import wait_until

_LOST: Final = 'flushtracker_slot_wal_status{program="capture",slot="s",source="7/1/s",wal_status="lost"} 1.0'
LOST: Final = SlotStatus(
    "s", 1, is_active=False, wal_status="lost", written_lsn=1, confirmed_lsn=1, retained_bytes=0, safe_wal_bytes=None
)


class Watch:
    """Sees the slot as the server shows it."""

    last = LOST

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], FakeWorld]:
    """A world whose slot is lost after the first connection; capture tells its status at the port, if there is one.

    The configuration has that of the tracking job, which is the one before.
    """

    def make(port: int | None) -> FakeWorld:
        if port is not None:
            monkeypatch.setitem(fake_world.CONFIG, "status", {"listen": f"127.0.0.1:{port - 1}"})
        monkeypatch.setattr(capture_loop, "SlotPoller", Watch)
        world = FakeWorld(tmp_path, monkeypatch)
        looks = iter([SlotFacts(CONFIRMED, None)])

        def read_slot(*_: object) -> SlotFacts:
            for facts in looks:
                return facts
            raise LostSlotError("replication slot s is lost")

        monkeypatch.setattr(capture_loop, "read_slot", read_slot)
        return world

    return make


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        return str(response.read().decode())


def test_monitoring_reads_that_the_slot_is_lost_before_capture_ends(
    make_world: Callable[[int | None], FakeWorld], caplog: pytest.LogCaptureFixture
) -> None:
    """It ended at once, and its metrics with it, so the alert of a lost slot could not fire; a stop ends the wait."""
    world = make_world(port := free_port())
    with ThreadPoolExecutor() as running:
        capturing = running.submit(world.capture, Connection(1))
        try:
            wait_until(lambda: "slot lost" in caplog.text, "the loss of the slot", 10)
            found = wait_until(lambda: found if _LOST in (found := metrics(port)) else None, "the lost slot", 10)
            assert not capturing.done()
        finally:
            stopped = time.monotonic()
            world.stop.set()
        error = capturing.exception(30)
    assert 'flushtracker_connected{program="capture",slot="s",source="7/1/s"} 0.0' in found
    assert (type(error), str(error)) == (LostSlotError, "replication slot s is lost")
    assert time.monotonic() - stopped < 30
    assert world.is_closed
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "status readable until capture ends ends_in_s=60 reason=replication slot s is lost" in record.getMessage()


def test_capture_ends_by_itself_a_while_after_its_slot_was_lost(
    make_world: Callable[[int | None], FakeWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor, and whoever waits for it, has to see that."""
    monkeypatch.setattr(capture_loop, "_LOST_SLOT_S", 0.5)
    world, started = make_world(free_port()), time.monotonic()
    with pytest.raises(LostSlotError):
        world.capture(Connection(1))
    assert time.monotonic() - started >= 0.5


def test_capture_without_a_status_ends_at_once_when_its_slot_is_lost(
    make_world: Callable[[int | None], FakeWorld], caplog: pytest.LogCaptureFixture
) -> None:
    """There is nothing to be read."""
    world = make_world(None)
    with pytest.raises(LostSlotError):
        world.capture(Connection(1))
    assert "slot lost" not in caplog.text
