"""``CaptureLoop`` on a server that was made from another one, without servers: which source it captures."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flushtracker.capture import capture_loop
from flushtracker.capture.capture_loop import CaptureLoop
from flushtracker.capture.source import publish_fence
from flushtracker.capture.source.captured_source import CapturedSource
from flushtracker.errors import FencedError, SlotError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import SourceEntry, parse_registry_entry
from flushtracker.postgres.replication_frames import Keepalive
from flushtracker.postgres.upgrade_seal import UpgradeSeal
from flushtracker.wal.timeline_history import TimelineHistory
from tests.support.fake_world import (
    BEGUN,
    Connection,
    FakeWorld,
    land_late,
    published,
    shape_entry,
    transaction,
)
from tests.support.mutated import mutated


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    """Source 7/1/s was captured, with one shape, up to 2000. Other captures are waited for briefly."""
    monkeypatch.setattr(publish_fence, "wait_s", lambda _: 0.05)
    monkeypatch.setattr(publish_fence, "CLAIM_WAIT_S", 0.05)
    monkeypatch.setattr(publish_fence, "CHECK_S", 0.005)
    world = FakeWorld(tmp_path, monkeypatch)
    world.define("users")
    world.register(shape_entry("users"), replace(BEGUN, published_lsn=-1, sealed=SEAL.token))
    world.topics["fragments"].append(published("7/1/s", 2000, 50))
    world.acks["7/1/s"] = 2000
    return world


def on_server(system_id: str, lsn: int) -> Connection:
    return Connection(1, [*transaction(lsn, 60), Keepalive(lsn + 100, reply_requested=False)], system_id=system_id)


def sources(world: FakeWorld) -> dict[str, SourceEntry]:
    entries = map(parse_registry_entry, world.topics["shapes"])
    return {entry.source: entry for entry in entries if isinstance(entry, SourceEntry)}


def test_another_server_does_not_silently_begin_another_source(world: FakeWorld) -> None:
    """Readers would find the shape in two sources; the message says what to do if it was made from the other one."""
    with pytest.raises(SlotError, match=r"7/1/s on server 7\. .* --upgraded-from and that identifier"):
        world.capture(on_server("8", 2500))
    assert list(sources(world)) == ["7/1/s"]


def test_a_server_that_was_made_from_another_begins_its_next_epoch(world: FakeWorld) -> None:
    """Under the name of the first server, so readers and followers continue; and the flag may be given again."""
    world.start_upgraded("7")
    world.capture(on_server("8", 2500))
    assert {event.source for event in world.fragments()[1:]} == {"7/1/s/1"}
    registry = Registry.of(map(parse_registry_entry, world.topics["shapes"]))
    assert (sources(world)["7/1/s/1"].system_id, registry.server_of("7/1/s/1")) == ("8", "8/1")
    for again in ("7", "8"):
        world.start_upgraded(again)
        world.capture(on_server("8", 2500))
    world.start_again()
    world.capture(on_server("8", 2500))
    assert list(sources(world)) == ["7/1/s", "7/1/s/1"]


def test_a_connection_that_is_lost_before_the_epoch_is_registered_changes_nothing(world: FakeWorld) -> None:
    """The next one begins the same epoch."""
    world.start_upgraded("7")
    lost = on_server("8", 2500)
    lost.is_on_the_same_server = False
    world.capture(lost, on_server("8", 2500))
    assert list(sources(world)) == ["7/1/s", "7/1/s/1"]


def test_the_old_server_is_refused_once_the_new_one_is_captured(world: FakeWorld) -> None:
    """As when its cluster is started again; to go back to it is an upgrade in the other direction."""
    world.start_upgraded("7")
    world.capture(on_server("8", 2500))
    world.start_again()
    with pytest.raises(SlotError, match="7/1/s/1 on server 8"):
        world.capture(on_server("7", 2100))
    world.start_upgraded("8")
    world.capture(on_server("7", 2100))
    assert [*sources(world)][2:] == ["7/1/s/2"]
    assert sources(world)["7/1/s/2"].server_id == "7"
    assert sources(world)["7/1/s/2"].system_id is None


def test_a_server_that_was_never_captured_is_not_upgraded_from(world: FakeWorld) -> None:
    """A mistyped identifier begins nothing."""
    world.start_upgraded("9")
    with pytest.raises(SlotError, match="slot s has no source of that server: 7/1/s on server 7"):
        world.capture(on_server("8", 2500))
    assert list(sources(world)) == ["7/1/s"]


SEAL = UpgradeSeal("7", "5ea1", confirmed_lsn=2410, old_xid=70, own_xid=600)
UPGRADED = 2400
"""What the slot of the new server has confirmed: all of the WAL that pg_upgrade has written before."""


def upgrade(world: FakeWorld, seal: UpgradeSeal | None = SEAL) -> None:
    """The server is now one that pg_upgrade has made of it; with the seal."""
    world.confirmed_lsn, world.seal = UPGRADED, seal


def test_the_source_goes_on_over_an_upgrade_that_has_brought_the_seal(world: FakeWorld) -> None:
    """With its name and shapes. Its chain has no gap, although nothing is resent from before the new slot."""
    upgrade(world)
    world.capture(on_server("8", 2500))
    assert list(sources(world)) == ["7/1/s"]
    entry = sources(world)["7/1/s"]
    assert (entry.system_id, entry.history, entry.starts_after.tx_offset) == ("8", TimelineHistory(1), UPGRADED - 1)
    first = world.fragments()[1]
    assert (first.source, first.start, first.follows.tx_offset) == ("7/1/s", True, 2000)
    assert world.routed(2500) == [["users"]]


def test_a_restart_before_the_first_ack_after_an_upgrade_follows_the_last_one(world: FakeWorld) -> None:
    """The seal is gone by then, and the old server is refused."""
    upgrade(world)
    world.capture(on_server("8", 2500))
    world.seal = None
    world.start_again()
    world.capture(on_server("8", 2500))
    starts = [event for event in world.fragments() if event.start]
    assert {event.follows.tx_offset for event in starts[1:]} == {2000}
    world.acks["7/1/s"] = 2500
    world.confirmed_lsn = 2501
    world.start_again()
    world.capture(on_server("8", 2600))
    assert [event.follows.tx_offset for event in world.fragments() if event.start][-1] == 2500
    world.start_again()
    with pytest.raises(SlotError, match="7/1/s on server 8"):
        world.capture(on_server("7", 2600))


def test_a_capture_that_runs_on_over_an_upgrade_continues(world: FakeWorld) -> None:
    """It connects to the new server at the same address."""
    world.confirmed_lsn = 2001
    old = on_server("7", 2100)
    old.until = lambda: any(event.lsn == 2100 for event in world.fragments())

    def pg_upgrade() -> None:
        world.acks["7/1/s"] = 2199
        # Another process has drained it meanwhile.
        world.register(replace(sources(world)["7/1/s"], sealed=SEAL.token))
        upgrade(world)

    old.at_the_end = pg_upgrade
    world.capture(old, on_server("8", 2500))
    assert list(sources(world)) == ["7/1/s"]
    assert world.routed(2100) == world.routed(2500) == [["users"]]


def test_a_capture_of_the_old_server_after_the_seal_ends_its_proof(world: FakeWorld) -> None:
    """As when it is started again by mistake: its shape changes are in the topic, below where the new server begins.

    Neither LSNs nor xids show that, as no fragment was published. The same is a copy of the disk from after the seal
    that was upgraded, while the original went on.
    """
    world.confirmed_lsn = 2001
    world.capture(Connection(1, [], system_id="7"))
    assert (sources(world)["7/1/s"].server_id, sources(world)["7/1/s"].sealed) == ("7", None)
    upgrade(world)
    world.start_again()
    with pytest.raises(SlotError, match="capture was started on the old server again"):
        world.capture(on_server("8", 2500))
    world.start_upgraded("7")
    world.capture(on_server("8", 2500))
    assert [*sources(world)] == ["7/1/s", "7/1/s/1"]


def test_what_a_seal_has_proven_needs_it_no_more(world: FakeWorld) -> None:
    """Its token is gone once the source is that of the new server, which can be sealed and upgraded in turn."""
    upgrade(world)
    world.capture(on_server("8", 2500))
    assert sources(world)["7/1/s"].sealed is None


@pytest.mark.parametrize(
    ("seal", "ack", "reason"),
    [
        (UpgradeSeal("7", "07e4", 2410, 70, 600), 2000, "capture was started on the old server again"),
        (replace(SEAL, misses_changes=True), 2000, "changes were made before its slot begins"),
        (SEAL, None, "nothing is acknowledged"),
        (SEAL, 1999, "transaction 50 at 0/7D0 .* was published"),
        (replace(SEAL, confirmed_lsn=2000), 2000, "its WAL begins at 0/7D0, but up to 0/7D0 was published"),
        (replace(SEAL, old_xid=50), 2000, "had yet to assign xid 50"),
        (replace(SEAL, system_id="9"), 2000, "7/1/s on server 7"),
        (None, 2000, "7/1/s on server 7"),
    ],
    ids=[
        *("sealed again", "slot created later", "no ack", "old acks", "LSNs used again", "restored copy"),
        *("another server", "no seal"),
    ],
)
def test_what_is_not_proven_is_refused_and_healed_if_told(
    world: FakeWorld, seal: UpgradeSeal | None, ack: int | None, reason: str
) -> None:
    """Nothing is published before; with the flag all shapes begin again under the same ids."""
    upgrade(world, seal)
    world.acks = {} if ack is None else {"7/1/s": ack}
    before = {role: list(values) for role, values in world.topics.items()}
    with pytest.raises(SlotError, match=reason):
        world.capture(on_server("8", 2500))
    assert world.topics == before
    world.start_upgraded("7")
    world.capture(on_server("8", 2500))
    assert [*sources(world)] == ["7/1/s", "7/1/s/1"]
    assert sources(world)["7/1/s"].server_id == "7"


def test_a_takeover_that_was_killed_is_done_again(world: FakeWorld) -> None:
    """The tables are registered first; until the source is, it is that of the old server."""
    upgrade(world)
    world.capture(on_server("8", 2500))
    entries = world.topics["shapes"]
    taken = next(number for number, value in enumerate(entries) if b'"system_id":"8"' in value)
    for killed_after in range(4, taken + 1):
        world.topics["shapes"] = entries[:killed_after]
        world.topics["fragments"], world.topics["changes"] = world.topics["fragments"][:1], []
        world.start_again()
        world.capture(on_server("8", 2500))
        assert list(sources(world)) == ["7/1/s"]
        assert sources(world)["7/1/s"].system_id == "8"
        assert world.routed(2500) == [["users"]]


@pytest.mark.parametrize(
    ("function", "old", "new"),
    [
        (CaptureLoop._capture, "min(confirmed_lsn, last_ack + 1)", "confirmed_lsn"),
        (CapturedSource._carry_entries, "system_id=self.server_id,", ""),
        (CapturedSource._carry_entries, "LogOffset.just_before(confirmed_lsn)", "entries.source.starts_after"),
    ],
    ids=["chain from the slot", "old server", "old start"],
)
def test_a_fault_of_the_takeover_is_found(world: FakeWorld, function: Callable[..., Any], old: str, new: str) -> None:
    """Each by the test of what goes right."""
    with mutated(function, old, new), pytest.raises((AssertionError, SlotError)):
        test_the_source_goes_on_over_an_upgrade_that_has_brought_the_seal(world)


def test_claims_that_cross_bring_back_no_seal_of_a_server_that_was_captured_since(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A capture of the old server clears the token, and a claim that is late puts it back: both end.

    The one that has cleared it has published nothing by then, so the seal still proves what it says.
    """
    sealed = sources(world)["7/1/s"]
    land_late(world, replace(sealed, holder="late"), caplog)
    old = on_server("7", 2300)
    old.until = lambda: False
    with monkeypatch.context() as patched:
        patched.setattr(publish_fence, "CLAIM_WAIT_S", 1_000.0)
        with pytest.raises(FencedError):
            world.capture(old)
    assert [event.lsn for event in world.fragments()] == [2000]
    assert sources(world)["7/1/s"].sealed == SEAL.token
    upgrade(world)
    world.start_again()
    world.capture(on_server("8", 2500))
    assert sources(world)["7/1/s"].system_id == "8"
    assert world.routed(2500) == [["users"]]


class Drain:
    """Seals the slot at its first check."""

    def __init__(self, *arguments: Any) -> None:
        self._record: Callable[[str], None] = arguments[-1]

    def is_done(self) -> bool:
        self._record("d4a1")
        return True


def test_a_drain_ends_with_its_seal_recorded_and_writes_nothing_itself(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat would have to be confirmed, then the next one. The token outlives the release of the source."""
    monkeypatch.setattr(capture_loop, "UpgradeDrain", Drain)
    world.confirmed_lsn = 2001
    world.start_draining()
    world.capture(Connection(1, [], until=lambda: False, system_id="7"))
    entry = sources(world)["7/1/s"]
    assert (entry.sealed, entry.holder) == ("d4a1", None)
    assert world.heartbeats == 0
    upgrade(world, UpgradeSeal("7", "d4a1", 2410, 70, 600))
    world.start_again()
    world.capture(on_server("8", 2500))
    assert list(sources(world)) == ["7/1/s"]
    assert sources(world)["7/1/s"].system_id == "8"


def test_a_claim_that_keeps_the_token_is_found(world: FakeWorld) -> None:
    """Then a seal would prove what it cannot know of."""
    with mutated(CapturedSource.claim, "sealed=None", "sealed=entry.sealed"), pytest.raises(AssertionError):
        test_a_capture_of_the_old_server_after_the_seal_ends_its_proof(world)
