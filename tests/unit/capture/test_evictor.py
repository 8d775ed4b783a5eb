"""The evictor asks its peers in a thread of its own; capture's thread acts on what is still true."""

import logging
import time
from dataclasses import replace
from typing import cast

import pytest
from msgspec import structs

from flushtracker.capture.eviction.config import EvictionRule
from flushtracker.capture.eviction.evictor import Evictor
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.http.peers import PeerAnswer
from tests.support.eviction_world import ACK, MB, SOURCE, World
from tests.support.waiting import wait_until

RULE = EvictionRule(1, None, 1, MB, 1)


class StandInPeer:
    """Answers with what the world's job says, each time a second later."""

    def __init__(self, world: World) -> None:
        self.answer = PeerAnswer("http://job")
        self._world = world
        self.error: str | None = None

    def poll(self) -> None:
        self._world.tick()
        status = None if self.error else self._world.job_status()
        self.answer = PeerAnswer("http://job", status, self._world.now_ms, self.error)


class StandInSubscriptions(Subscriptions):
    """Remembers what is evicted."""

    def __init__(self) -> None:
        self.evicted: list[str] = []

    def evict(self, shape_id: str, reason: str, now_ms: int) -> bool:
        assert reason
        assert now_ms
        self.evicted.append(shape_id)
        return True


def evictions_of(evictor: Evictor, source: str = SOURCE, wait_s: float = 0.0) -> list[str]:
    """Let the evictor look three times, and then act."""
    subscriptions = StandInSubscriptions()
    for _ in range(3):
        evictor._check()
    time.sleep(wait_s)
    evictor.evict(source, subscriptions)
    evictor.evict(source, subscriptions)
    return subscriptions.evicted


def test_what_is_decided_is_done_once() -> None:
    """Between two fragments, in capture's thread."""
    world = World(written_lsn=ACK + 20 * MB)
    evictor = Evictor(RULE, [StandInPeer(world)], world.capture_status)
    assert evictions_of(evictor) == ["dead"]
    assert evictor.evicted == 1


def test_what_was_decided_of_another_source_or_long_ago_is_not_done() -> None:
    """Capture may have been blocked by Kafka since, or continue under a new epoch."""
    world = World(written_lsn=ACK + 20 * MB)
    evictor = Evictor(RULE, [StandInPeer(world)], world.capture_status)
    assert evictions_of(evictor, "7/2/shapes") == []
    assert evictions_of(evictor, wait_s=0.5) == []
    assert evictions_of(evictor) == ["dead"]


def test_two_jobs_that_know_the_source_are_none() -> None:
    """One of them is an old one, and nobody can say which."""
    world = World(written_lsn=ACK + 20 * MB)
    evictor = Evictor(RULE, [StandInPeer(world), StandInPeer(world)], world.capture_status)
    assert evictions_of(evictor) == []


def test_a_job_that_is_silent_is_logged_once_and_evicts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """And once more when it answers again."""
    caplog.set_level(logging.INFO)
    world = World(written_lsn=ACK + 20 * MB)
    peer = StandInPeer(world)
    peer.error = "Connection refused"
    evictor = Evictor(RULE, [peer], world.capture_status)
    assert evictions_of(evictor) == []
    peer.error = None
    assert evictions_of(evictor) == ["dead"]
    assert [record.getMessage() for record in caplog.records] == [
        "no shape can be evicted without this status url=http://job reason=Connection refused",
        "status answers again url=http://job",
    ]


class SilentPeer:
    """A program that does not run, such as the writers' job."""

    def __init__(self) -> None:
        self.answer = PeerAnswer("http://writers", error="Connection refused")

    def poll(self) -> None:
        """Nobody answers."""


def test_a_silent_peer_is_not_the_job_if_another_one_is(caplog: pytest.LogCaptureFixture) -> None:
    """The writers' job is among the peers, too. Evictions do without it."""
    caplog.set_level(logging.INFO)
    world = World(written_lsn=ACK + 20 * MB)
    peers = [cast("StandInPeer", SilentPeer()), StandInPeer(world)]
    assert evictions_of(Evictor(RULE, peers, world.capture_status)) == ["dead"]
    assert [record.getMessage() for record in caplog.records] == []


def test_an_eviction_that_has_to_wait_for_the_hour_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever looks why the slot still grows finds it."""
    world = World(written_lsn=ACK + 20 * MB)
    peer = StandInPeer(world)

    def read() -> CaptureStatus:
        return structs.replace(world.capture_status(), evictions=())

    evictor = Evictor(replace(RULE, at_most_per_hour=0), [peer], read)
    assert evictions_of(evictor) == []
    why = "evictions in the last hour: 0, which is capture.evict.at_most_per_hour"
    assert [record.getMessage() for record in caplog.records] == [f"no shape evicted reason='dead' must wait: {why}"]


def test_the_thread_looks_again_and_again_until_it_is_stopped() -> None:
    """Its interval is a quarter of the grace period."""
    world = World(written_lsn=ACK + 20 * MB)
    subscriptions = StandInSubscriptions()

    def has_evicted() -> bool:
        evictor.evict(SOURCE, subscriptions)
        return bool(subscriptions.evicted)

    with Evictor(RULE, [StandInPeer(world)], world.capture_status) as evictor:
        wait_until(has_evicted, "an eviction", 10)
    before = world.now_ms
    assert not evictor._thread.is_alive()
    assert world.now_ms == before
