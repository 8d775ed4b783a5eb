"""The reports of groups and chains, and what the driver computes from them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.tracking.group_report import GroupReport, PendingShape
from flushtracker.tracking.packed_state import offset_to_json
from flushtracker.tracking.source_tracker import CHAIN, ChainReport, ReportRow, SourceTracker, SourceTrackers
from flushtracker.wal.log_offset import LogOffset


def shape(lsn: int, shape_id: str, *, since_ms: int = 0) -> PendingShape:
    """One that has yet to flush the transaction at ``lsn``."""
    return PendingShape(LogOffset(lsn - 1, 0), shape_id, since_ms, transactions=1)


def report(lsn: int, shape_id: str, *, pending_shapes: int = 1, since_ms: int = 0) -> GroupReport:
    return GroupReport(pending_shapes, LogOffset(lsn, 4), (shape(lsn, shape_id, since_ms=since_ms),))


def chain_report(last_seen: LogOffset | None) -> ChainReport:
    """A report as read from state, which may contain more than the report needs."""
    return ChainReport.from_json(json.dumps({"last_seen_offset": offset_to_json(last_seen), "shape_groups": 16}))


OFFSETS = st.builds(LogOffset, st.integers(-1, 2**63 - 1), st.integers(0, 2**63 - 1))
SHAPES = st.builds(PendingShape, OFFSETS, st.text(), st.integers(0, 2**53), st.integers(1, 2**31))


@given(st.lists(SHAPES, max_size=3), st.integers(1, 9), OFFSETS, st.lists(st.text(), max_size=2))
def test_group_report_is_read_as_written(
    shapes: list[PendingShape], pending_shapes: int, last_sent: LogOffset, removed: list[str]
) -> None:
    """Through JSON, with and without anything pending or removed."""
    pending = (pending_shapes, last_sent, tuple(shapes)) if shapes else ()
    written = replace(GroupReport(*pending), removed=tuple(removed))
    assert GroupReport.from_json(written.to_json()) == written


@given(st.none() | st.builds(LogOffset, st.integers(0, 2**63 - 1), st.integers(0, 99)))
def test_chain_report_is_read_as_written(last_seen: LogOffset | None) -> None:
    """Through JSON, before the first commit too."""
    written = chain_report(last_seen)
    assert ChainReport.from_json(written.to_json()) == written
    assert written.last_seen_offset == last_seen


def test_only_the_newest_report_of_a_group_counts() -> None:
    """A group without a new report keeps its last one; the number of pending shapes follows the newest reports."""
    tracker = SourceTracker()
    reports = {"0": report(100, "users", pending_shapes=3), "1": report(200, "orders", pending_shapes=2)}
    assert tracker.apply(reports, chain_report(LogOffset(200, 4))) == 98
    assert (tracker.pending_shapes, tracker.holders) == (5, (shape(100, "users"), shape(200, "orders")))
    assert tracker.apply({"0": report(150, "items")}, None) == 148
    assert tracker.pending_shapes == 3
    assert tracker.apply({"0": GroupReport(), "1": GroupReport()}, None) == 200
    assert (tracker.pending_shapes, tracker.holders, tracker.ack_lsn) == (0, (), 200)


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
    assert trackers.apply([ReportRow("a", CHAIN, seen), ReportRow("b", CHAIN, seen)]) == {"b": 100}
    assert {source: tracker.ack_lsn for source, tracker in trackers.items()} == {"a": 150, "b": 100}


def test_nothing_is_acknowledged_before_the_first_commit() -> None:
    """Without an ack in the table, a chain without a commit returns none."""
    trackers = SourceTrackers(last_ack=lambda _source: None)
    assert trackers.apply([ReportRow("a", CHAIN, ChainReport(None).to_json())]) == {}
    assert trackers["a"].ack_lsn == -1


@pytest.mark.parametrize("with_groups", [True, False])
def test_what_groups_report_past_a_gap_is_not_acknowledged(*, with_groups: bool) -> None:
    """They may do so in the micro-batch that finds it, or later; a starting driver gets the reports together."""
    trackers = SourceTrackers({"8/1/s": 80}.get)
    start = ChainReport(LogOffset(100, 4)).to_json()
    acks = trackers.apply([ReportRow(source, CHAIN, start) for source in ("7/1/s", "8/1/s")])
    assert acks == {"7/1/s": 100, "8/1/s": 100}
    broken = ReportRow("8/1/s", CHAIN, ChainReport(LogOffset(100, 4), "no 0/C8").to_json())
    # Pending from past the lost transaction on, which alone would allow an ack of 298.
    past = ReportRow("8/1/s", "3", report(300, "users").to_json())
    seen = ReportRow("7/1/s", CHAIN, ChainReport(LogOffset(300, 4)).to_json())
    assert trackers.apply([past, broken, seen] if with_groups else [broken, seen]) == {"7/1/s": 300}
    assert trackers.apply([past]) == {}
    assert trackers.gaps() == {"8/1/s": "no 0/C8"}
    assert not trackers.all_set_aside
    restarted = SourceTrackers({"7/1/s": 300, "8/1/s": 100}.get)
    assert restarted.apply([past, broken, seen]) == {}
    for each in (trackers["8/1/s"], restarted["8/1/s"]):
        each.check_invariants()
        assert (each.ack_lsn, each.gap, each.last_seen_offset, each.holders) == (100, "no 0/C8", LogOffset(100, 4), ())


def test_a_retired_source_is_not_among_those_that_are_left() -> None:
    """Nothing waits for its acks, so it neither keeps a job without other sources running, nor is its gap told."""
    trackers = SourceTrackers(lambda _source: None)
    whole, broken = ChainReport(LogOffset(9, 0)).to_json(), ChainReport(None, "no 0/9").to_json()
    trackers.apply([ReportRow("7/1/s", CHAIN, whole), ReportRow("7/2/s", CHAIN, broken)])
    assert trackers.all_set_aside
    trackers = SourceTrackers(lambda _source: None)
    trackers.apply([ReportRow("7/1/s", CHAIN, broken), ReportRow("7/2/s", CHAIN, whole)])
    assert trackers.gaps() == {}
    assert not trackers.all_set_aside


@pytest.mark.parametrize("named", ["7/1/s/1", "zzz"])
def test_a_flush_of_a_source_without_fragments_hides_no_gap(named: str) -> None:
    """Whoever may notify could otherwise retire a source by naming its successor, or keep the job from ending."""
    trackers = SourceTrackers(lambda _source: None)
    broken = ReportRow("7/1/s", CHAIN, ChainReport(None, "no 0/9").to_json())
    trackers.apply([ReportRow(named, "3", GroupReport().to_json()), broken])
    assert trackers.gaps() == {"7/1/s": "no 0/9"}
    assert trackers.all_set_aside


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


def test_check_invariants_detects_holders_that_differ_from_the_reports() -> None:
    """A wrong list would send an operator to the wrong writer."""
    tracker = SourceTracker()
    tracker.apply({"0": report(100, "users")}, None)
    tracker.holders = ()
    with pytest.raises(AssertionError, match=r"the holders are \(\), but the reports have \[PendingShape"):
        tracker.check_invariants()


def test_removed_shapes_are_those_of_the_last_batch() -> None:
    """The next batch does not report them again."""
    tracker = SourceTracker()
    tracker.apply({"0": GroupReport(removed=("a",)), "1": GroupReport(removed=("b",))}, None)
    assert tracker.removed == {"a", "b"}
    tracker.apply({"0": GroupReport()}, None)
    assert tracker.removed == frozenset()


def test_a_source_without_a_report_has_removed_nothing_in_the_batch() -> None:
    """Otherwise each batch of another source would report its last removals again."""
    trackers = SourceTrackers(lambda _: None)
    trackers.apply([ReportRow("idle", "0", GroupReport(removed=("a",)).to_json())])
    assert trackers["idle"].removed == {"a"}
    trackers.apply([ReportRow("busy", "0", GroupReport().to_json())])
    assert trackers["idle"].removed == frozenset()
