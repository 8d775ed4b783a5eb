"""The reports of groups and chains, and what the driver computes from them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.tracking.flush_tracker import Pending
from flushtracker.tracking.packed_state import offset_to_json
from flushtracker.tracking.source_tracker import (
    CHAIN,
    Blocking,
    ChainReport,
    GroupReport,
    Report,
    SourceTracker,
    SourceTrackers,
)
from flushtracker.wal.log_offset import LogOffset


def report(lsn: int, shape_id: str, *, pending_shapes: int = 1, since_ms: int = 0) -> GroupReport:
    return GroupReport(pending_shapes, Pending(LogOffset(lsn, 4), LogOffset(lsn - 1, 0), since_ms), shape_id)


def chain_report(last_seen: LogOffset | None) -> ChainReport:
    """A report as read from state, which may contain more than the report needs."""
    return ChainReport.from_json(json.dumps({"last_seen_offset": offset_to_json(last_seen), "shape_groups": 16}))


@given(st.integers(1, 2**63 - 1), st.text(), st.integers(1, 9), st.integers(0, 2**53))
def test_group_report_is_read_as_written(lsn: int, shape_id: str, pending_shapes: int, since_ms: int) -> None:
    """Through JSON, with and without anything pending."""
    written = report(lsn, shape_id, pending_shapes=pending_shapes, since_ms=since_ms)
    assert GroupReport.from_json(written.to_json()) == written
    assert GroupReport.from_json(GroupReport().to_json()) == GroupReport()


@given(st.none() | st.builds(LogOffset, st.integers(0, 2**63 - 1), st.integers(0, 99)))
def test_chain_report_is_read_as_written(last_seen: LogOffset | None) -> None:
    """Through JSON, before the first commit too."""
    written = chain_report(last_seen)
    assert ChainReport.from_json(written.to_json()) == written
    assert written.last_seen_offset == last_seen


def test_only_the_newest_report_of_a_group_counts() -> None:
    """A group without a new report keeps its last one; the number of pending shapes follows the newest reports."""
    tracker = SourceTracker()
    pending = Pending(LogOffset(100, 4), LogOffset(99, 0), since_ms=0)
    reports = {"0": GroupReport(3, pending, "users"), "1": report(200, "orders", pending_shapes=2)}
    assert tracker.apply(reports, chain_report(LogOffset(200, 4))) == 98
    assert (tracker.pending_shapes, tracker.blocking()) == (5, Blocking("users", pending))
    assert tracker.apply({"0": report(150, "items")}, None) == 148
    assert tracker.pending_shapes == 3
    assert tracker.apply({"0": GroupReport(), "1": GroupReport()}, None) == 200
    assert (tracker.pending_shapes, tracker.blocking(), tracker.ack_lsn) == (0, None, 200)


def test_a_group_that_stays_caught_up_counts_nothing() -> None:
    """Its earlier pending shapes are subtracted once, not again with each empty report."""
    tracker = SourceTracker()
    tracker.apply({"0": report(100, "users", pending_shapes=3)}, chain_report(LogOffset(100, 4)))
    for _ in range(2):
        tracker.apply({"0": GroupReport()}, None)
        assert tracker.pending_shapes == 0
        tracker.check_invariants()


def test_the_same_report_twice_counts_its_shapes_once() -> None:
    """A rebuilt driver may receive a report again."""
    tracker = SourceTracker()
    for _ in range(2):
        tracker.apply({"0": report(100, "users", pending_shapes=3)}, None)
    assert tracker.pending_shapes == 3


def test_a_new_tracker_starts_from_its_sources_last_ack() -> None:
    """It neither returns nor reports an ack below the durable one, and asks for each source by its name."""
    trackers = SourceTrackers({"a": 150, "b": 90}.get)
    seen = ChainReport(LogOffset(100, 4)).to_json()
    assert trackers.apply([Report("a", CHAIN, seen), Report("b", CHAIN, seen)]) == {"b": 100}
    assert {source: tracker.ack_lsn for source, tracker in trackers.items()} == {"a": 150, "b": 100}


def test_nothing_is_acknowledged_before_the_first_commit() -> None:
    """Without an ack in the table, a chain without a commit returns none."""
    trackers = SourceTrackers(last_ack=lambda _source: None)
    assert trackers.apply([Report("a", CHAIN, ChainReport(None).to_json())]) == {}
    assert trackers["a"].ack_lsn == -1


def test_check_invariants_detects_reports_that_differ_from_the_tracker() -> None:
    """The check that other tests rely on fails on a lost report, and on a wrong sum."""
    tracker = SourceTracker()
    tracker.apply({"0": report(100, "users", pending_shapes=3)}, None)
    tracker.pending_shapes = 2
    with pytest.raises(AssertionError, match="pending_shapes is 2, but the reports add up to 3"):
        tracker.check_invariants()
    tracker._reports.clear()
    with pytest.raises(AssertionError, match=r"the tracker has \{'0': Pending.*, but the reports have \{\}"):
        tracker.check_invariants()


def test_stalled_names_the_shape_that_holds_its_group_back() -> None:
    """One shape for each group, the longest stall first."""
    tracker = SourceTracker()
    tracker.apply({"0": report(100, "users", since_ms=9), "1": report(200, "orders", since_ms=5)}, None)
    assert [blocking.shape_id for blocking in tracker.stalled(now_ms=20, grace_ms=11)] == ["orders", "users"]
    assert [blocking.shape_id for blocking in tracker.stalled(now_ms=20, grace_ms=12)] == ["orders"]
