"""The proof that a promoted server continues a source, and what it refuses; judged by a search of the WAL itself."""

import random
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from flushtracker.capture.source.continuity import check_continues, check_slot, check_upgraded
from flushtracker.capture.wire.history_check import TransactionIdentity
from flushtracker.errors import DecodeError, SlotError
from flushtracker.events.registry_events import SourceEntry
from flushtracker.postgres.upgrade_seal import UpgradeSeal
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.timeline_history import TimelineHistory

ONE = TimelineHistory(1)
TWO = TimelineHistory(2, ((1, 500),))
THREE = TimelineHistory(3, ((1, 500), (2, 900)))


def test_what_lies_before_the_switch_point_is_continued() -> None:
    """A commit record that begins one byte below it is in both timelines."""
    assert check_continues("s", ONE, TWO, known_lsn=499) == 500
    assert check_continues("s", TWO, THREE, known_lsn=899) == 900
    assert check_continues("s", ONE, THREE, known_lsn=499) == 500


@pytest.mark.parametrize("known_lsn", [500, 501, 10_000])
def test_what_was_published_at_or_past_the_switch_point_is_lost(known_lsn: int) -> None:
    """The new timeline has another record there. Only the first switch counts, however many followed."""
    with pytest.raises(SlotError, match=r"has timeline 1 up to 0/1F4, but up to 0/.* the failover has lost transactio"):
        check_continues("s", ONE, TWO, known_lsn=known_lsn)
    with pytest.raises(SlotError, match="the failover has lost transactions"):
        check_continues("s", ONE, THREE, known_lsn=known_lsn)


@pytest.mark.parametrize(
    ("recorded", "server"),
    [
        (TWO, ONE),  # the old primary
        (THREE, TWO),
        (TWO, TimelineHistory(3, ((1, 400),))),  # promoted from the old primary
        (TWO, TimelineHistory(2, ((1, 501),))),  # a twin, promoted elsewhere
        (TWO, TimelineHistory(3, ((1, 499), (2, 900)))),  # the successor of a twin
    ],
)
def test_another_branch_is_refused(recorded: TimelineHistory, server: TimelineHistory) -> None:
    """The number of its timeline may be the same, or greater."""
    with pytest.raises(SlotError, match="which does not continue it: it is an old primary, or another standby was"):
        check_continues("s", recorded, server, known_lsn=0)


def test_a_slot_that_was_created_after_the_promotion_is_refused() -> None:
    """It must begin where the acks end, and not past the switch point."""
    check_slot("s", switch=500, confirmed_lsn=400, safe_lsn=399)
    check_slot("s", switch=500, confirmed_lsn=300, safe_lsn=399)
    for confirmed_lsn in (401, 520):
        with pytest.raises(SlotError, match="another one was created, which lacks the changes in between"):
            check_slot("s", switch=500, confirmed_lsn=confirmed_lsn, safe_lsn=399)
    with pytest.raises(SlotError, match="the failover has lost the slot"):
        check_slot("s", switch=500, confirmed_lsn=501, safe_lsn=600)


@pytest.mark.parametrize("text", ["1", "x\t0/1\tr", "1\tx\tr", "2\t0/5\tr", "1\t0/9\tr\n1\t0/9\tr"])
def test_a_malformed_history_is_refused(text: str) -> None:
    """A line without LSN, what is no number, and timelines out of order."""
    with pytest.raises(DecodeError, match="the history of timeline 2"):
        TimelineHistory.parse(2, text)


def test_switch_points_that_go_back_are_refused() -> None:
    """A timeline cannot begin before the one that it has come from."""
    with pytest.raises(DecodeError, match="expected ascending"):
        TimelineHistory.parse(3, "1\t0/500\tr\n2\t0/400\tr\n")


@dataclass
class _Server:
    """A server's WAL as what it is: the record at each LSN, by the server that wrote it."""

    history: TimelineHistory
    records: dict[int, str]

    @property
    def end(self) -> int:
        return max(self.records, default=0) + 1


@pytest.mark.parametrize("seed", range(300))
def test_a_server_is_continued_exactly_if_its_wal_has_all_that_was_published(seed: int) -> None:
    """Random promotions, also of twins; the oracle compares the records themselves.

    Of twins that were promoted at the same place, to the same timeline, only the transactions differ: here are none.
    """
    rng = random.Random(seed)  # noqa: S311  a reproducible history
    servers = [_Server(ONE, dict.fromkeys(range(1, 30), "a"))]
    for number in range(6):
        origin = rng.choice(servers)
        begun_lsn = origin.history.switches[-1][1] if origin.history.switches else 1
        switch = rng.randrange(max(begun_lsn, origin.end - 20), origin.end + 1)
        kept = {lsn: by for lsn, by in origin.records.items() if lsn < switch}
        timeline = origin.history.timeline + rng.randrange(1, 3)
        switches = (*origin.history.switches, (origin.history.timeline, switch))
        if any(server.history == TimelineHistory(timeline, switches) for server in servers):
            continue
        written = {switch + offset: f"{number}" for offset in range(rng.randrange(1, 30))}
        servers.append(_Server(TimelineHistory(timeline, switches), kept | written))
    for first in servers:
        published_lsn = rng.randrange(first.end)
        # What a server publishes is of its own timeline, or was published before.
        begun_lsn = first.history.switches[-1][1] if first.history.switches else 0
        for second in servers:
            has_all = all(second.records.get(lsn) == by for lsn, by in first.records.items() if lsn <= published_lsn)
            try:
                check_continues("s", first.history, second.history, known_lsn=published_lsn)
            except SlotError:
                # Nothing of the first server's own timeline was published: then it may be refused without need.
                assert not has_all or published_lsn < begun_lsn or second.history.switch_from(first.history) is None
            else:
                assert has_all


ENTRY: Final = SourceEntry("7/1/s", LogOffset(99, 0), "7.1", sealed="5ea1")
UPGRADE: Final[dict[str, Any]] = {
    "entry": ENTRY,
    "seal": UpgradeSeal("7", "5ea1", confirmed_lsn=500, old_xid=60, own_xid=90),
    "last_transaction": TransactionIdentity(300, 59, "2026-11-26T00:00:00.000000Z"),
    "confirmed_lsn": 510,
    "known_lsn": 499,
    "last_ack": 300,
}


@pytest.mark.parametrize(
    "change",
    [
        {"seal": UpgradeSeal("7", "5ea1", 500, 60, 90, misses_changes=True)},
        {"entry": replace(ENTRY, sealed=None)},
        {"entry": replace(ENTRY, sealed="07e4")},
        {"last_ack": 299},
        {"last_ack": None},
        {"known_lsn": 500},
        {"known_lsn": 505},
        {"confirmed_lsn": 499},
        {"last_transaction": TransactionIdentity(300, 60, "2026-11-26T00:00:00.000000Z")},
    ],
    ids=[
        *("changes", "captured again", "sealed again", "not acknowledged", "no ack", "LSN of the seal"),
        *("LSN past the seal", "LSN of the slot", "xid"),
    ],
)
def test_an_upgrade_is_refused_if_one_thing_is_not_proven(change: dict[str, Any]) -> None:
    """The proof ends one byte, or one xid, before what was published."""
    check_upgraded(**UPGRADE)
    with pytest.raises(SlotError, match="was upgraded from that with the system identifier 7, but"):
        check_upgraded(**{**UPGRADE, **change})


def test_an_upgrade_without_a_published_transaction_is_proven_by_its_positions() -> None:
    """A source of which only keepalives were published."""
    check_upgraded(**{**UPGRADE, "last_transaction": None})
