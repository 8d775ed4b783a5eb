"""The fence of two captures of one source: whoever has claimed it last publishes, and the other one ends."""

import json
from collections.abc import Mapping
from dataclasses import replace
from threading import Event
from typing import Final

import pytest

from flushtracker.capture.source.publish_fence import CLAIM_S, CLAIM_WAIT_S, LEASE_S, Claim, PublishFence, wait_s
from flushtracker.errors import BrokerError, BrokerUnavailableError, FencedError, FlushtrackerError
from flushtracker.events.registry_events import SourceEntry
from flushtracker.wal.log_offset import LogOffset
from tests.support.waiting import wait_until

BEFORE: Final = SourceEntry("7/1/s", LogOffset(9, 0), "p", holder="before", published_lsn=5)
RETRY_TIMEOUT_S: Final = 60.0
OWN: Final = replace(BEFORE, holder="own")


class World:
    """A registry's topic, and a clock that tests advance."""

    def __init__(self) -> None:
        self.entries: list[SourceEntry] = [BEFORE]
        self.now_s = 100.0
        self.is_readable = True
        self.abandoned: list[FlushtrackerError] = []
        self.others: list[bytes] = []
        """Other values of the topic, which every read returns."""
        self.stop = Event()

    def since(self, topic: str, starts: Mapping[int, int]) -> tuple[list[bytes], dict[int, int]]:
        assert topic == "shapes"
        if not self.is_readable:
            raise BrokerError("the brokers do not answer")
        values = [entry.to_json().encode() for entry in self.entries[starts[0] :]]
        return [*values, *self.others], {0: len(self.entries)}

    def close(self) -> None:
        pass

    def fence(self, starts: int = 0) -> PublishFence:
        claim = Claim("7/1/s", "own", BEFORE, {0: starts}, self.now_s, RETRY_TIMEOUT_S)
        return PublishFence(lambda: self, "shapes", claim, self.stop, self.abandoned.append, lambda: self.now_s)


def test_the_last_claim_may_publish() -> None:
    """The entry that it replaces, and claims of other sources, fence nobody."""
    world = World()
    fence = world.fence()
    world.entries += [OWN, replace(BEFORE, source="8/1/s", holder="other"), replace(OWN, publication="q")]
    fence.check(world)
    assert fence.is_open()


@pytest.mark.parametrize("is_first", [False, True])
def test_another_claim_fences_for_good(is_first: bool) -> None:  # noqa: FBT001  a parameter of the test
    """Also one that came between what this capture has read and its own claim: it may have published since."""
    world = World()
    fence = world.fence()
    other = replace(BEFORE, holder="other")
    world.entries += [other, OWN] if is_first else [OWN, other]
    fence.check(world)
    for _ in range(2):
        with pytest.raises(FencedError, match="7/1/s: another capture has claimed the source"):
            fence.is_open()


def test_a_release_of_an_older_version_fences() -> None:
    """Its entry has no claim at all."""
    world = World()
    fence = world.fence(starts=1)
    world.entries += [OWN, replace(OWN, holder=None, published_lsn=None)]
    fence.check(world)
    with pytest.raises(FencedError):
        fence.is_open()


def test_nothing_is_published_without_a_recent_look_at_the_registry() -> None:
    """From the moment when the look began; if capture is to stop meanwhile, it does."""
    world = World()
    fence = world.fence()
    world.entries.append(OWN)
    world.now_s += LEASE_S - 0.1
    assert fence.is_open()
    world.now_s += 0.1
    assert not fence.is_open()
    fence.check(world)
    assert fence.is_open()
    world.is_readable = False
    world.now_s += LEASE_S
    with pytest.raises(BrokerError):
        fence.check(world)
    assert not fence.is_open()
    world.stop.set()
    with pytest.raises(BrokerUnavailableError):
        fence.is_open()


def test_what_is_queued_is_discarded_once_another_has_claimed_the_source() -> None:
    """By a thread of its own, whatever the one that publishes does."""
    world = World()
    world.entries += [OWN, replace(BEFORE, holder="other")]
    with world.fence():
        wait_until(lambda: world.abandoned, "the queue to be discarded", 10)
    assert [type(error) for error in world.abandoned] == [FencedError]


def test_what_is_queued_is_discarded_at_a_deadline_that_no_confirmation_moves() -> None:
    """That is ``retry_timeout`` after the lease; the reader may still wait for the brokers."""
    world = World()
    is_over = Event()
    reads: list[float] = []

    def block(topic: str, _: Mapping[int, int]) -> tuple[list[bytes], dict[int, int]]:
        reads.append(world.now_s)
        is_over.wait(10)
        raise BrokerError(topic)

    world.since = block  # type: ignore[method-assign, assignment]
    with world.fence() as fence:
        wait_until(lambda: reads, "the reader to block", 10)
        world.now_s += LEASE_S + RETRY_TIMEOUT_S - 0.1
        assert not fence.is_open()
        fence.enforce()
        assert not world.abandoned
        world.now_s += 0.1
        wait_until(lambda: world.abandoned, "the queue to be discarded", 10)
        world.now_s -= 1.0
        with pytest.raises(BrokerUnavailableError, match="7/1/s: the registry was not readable for 65 s"):
            fence.is_open()
        is_over.set()
    assert len(world.abandoned) == 1


def test_a_claim_that_is_not_confirmed_is_discarded_when_the_last_look_is_old() -> None:
    """Another capture waits for as long. Looks after that one do not count; once the claim is there, the lease does."""
    assert CLAIM_WAIT_S > CLAIM_S
    world = World()
    fence = world.fence()
    with fence.claiming():
        world.now_s += CLAIM_S - 0.1
        fence.enforce()
        assert not world.abandoned
    world.now_s += 0.1
    fence.enforce()
    assert not world.abandoned
    fence.check(world)
    with fence.claiming():
        world.now_s += CLAIM_S - 0.1
        fence.check(world)
        fence.enforce()
        assert not world.abandoned
        world.now_s += 0.1
        fence.enforce()
    assert [type(error) for error in world.abandoned] == [BrokerUnavailableError]


def test_a_fence_that_has_seen_another_claim_stays_closed() -> None:
    """Also if another thread looks at the same time, from a later place on."""
    world = World()
    fence = world.fence()
    world.entries += [replace(BEFORE, holder="other"), OWN]
    fence.check(world)
    fence.check(world)
    with pytest.raises(FencedError):
        fence.is_open()


def newer(entry: SourceEntry) -> bytes:
    """An entry that only a newer release can read."""
    return json.dumps(json.loads(entry.to_json()) | {"v": 99}).encode()


def test_entries_of_a_newer_release_about_something_else_are_ignored() -> None:
    """It may capture other sources of the same topics."""
    world = World()
    fence = world.fence()
    world.entries.append(OWN)
    world.others = [newer(replace(OWN, source="8/1/s")), b'{"v":99,"type":"shape","source":"7/1/s","id":"source"}']
    world.now_s += LEASE_S - 0.1
    fence.check(world)
    world.now_s += LEASE_S - 0.1
    assert fence.is_open()


@pytest.mark.parametrize("value", [newer(OWN), b'{"source": "7/1/s", "type": "source"'])
def test_a_claim_that_cannot_be_read_ends_capture(value: bytes) -> None:
    """Otherwise the gate would stay shut, and nothing would say why."""
    world = World()
    world.others = [value]
    message = "7/1/s: whether another capture has claimed the source cannot be read"
    with world.fence() as fence, pytest.raises(BrokerError, match=message):
        wait_until(lambda: not fence.is_open(), "the fence to fail", 10)


def test_whoever_takes_over_waits_longer_than_the_other_one_publishes() -> None:
    """That one queues nothing after its lease, and discards what is not confirmed for ``retry_timeout``."""
    assert wait_s(60_000) > LEASE_S + 60
