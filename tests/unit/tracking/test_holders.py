"""The shapes that hold the most, and the ack without them, against plain lists of all shapes over random histories."""

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, note
from hypothesis import strategies as st

from flushtracker.tracking.group_report import HOLDERS, GroupReport, PendingShape
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.source_tracker import ChainReport, SourceTracker
from flushtracker.wal.log_offset import LogOffset
from tests.support.group_view import ShapeFlush, apply_batch
from tests.support.plain_group import Batch, PlainGroup, random_group_batches
from tests.support.random_wal import RANDOMS

END = LogOffset(2**62, 0)


@dataclass
class Source:
    """Groups with their plain definitions, and the driver's tracker, which gets their reports through JSON."""

    groups: int
    max_pending: int
    real: dict[int, ShapeGroup] = field(default_factory=dict)
    plain: dict[int, PlainGroup] = field(default_factory=dict)
    tracker: SourceTracker = field(default_factory=SourceTracker)
    last_seen: LogOffset = field(default_factory=LogOffset.before_all)

    def __post_init__(self) -> None:
        for number in range(self.groups):
            self.real[number] = ShapeGroup(LogOffset.before_all())
            self.plain[number] = PlainGroup(LogOffset.before_all())

    def group_of(self, shape_id: str) -> int:
        return int(shape_id[1:]) % self.groups

    def apply(self, batch: Batch, now_ms: int) -> None:
        """Groups without events report nothing."""
        fragments, flushes = batch
        reports = {}
        for number, group in self.real.items():
            mine = [each for each in fragments if self.group_of(each.shape_id) == number]
            flushed = [each for each in flushes if self.group_of(each.shape_id) == number]
            if mine or flushed:
                apply_batch(group, mine, flushed, now_ms=now_ms, max_pending=self.max_pending)
                self.plain[number].apply((mine, flushed), now_ms=now_ms, max_pending=self.max_pending)
                reports[str(number)] = GroupReport.from_json(group.report().to_json())
        commits = [each.last_log_offset for each in fragments if each.is_commit]
        self.last_seen = max([self.last_seen, *commits])
        self.tracker.apply(reports, ChainReport(self.last_seen))
        self.tracker.check_invariants()

    def pending(self) -> list[PendingShape]:
        """All pending shapes, by plain definition."""
        found = [shape for group in self.plain.values() for shape in group.pending()]
        return sorted(found, key=lambda shape: (shape.last_flushed, shape.shape_id))

    def ack_without(self, *shape_ids: str) -> int:
        """The ack after the shapes are removed, on a copy of everything."""
        tracker = deepcopy(self.tracker)
        for number in {self.group_of(shape_id) for shape_id in shape_ids}:
            group = ShapeGroup.unpack(self.real[number].pack())
            mine = [shape_id for shape_id in shape_ids if self.group_of(shape_id) == number]
            removals = [ShapeFlush(shape_id, END, is_removal=True) for shape_id in mine]
            apply_batch(group, [], removals, now_ms=0, max_pending=self.max_pending)
            tracker.apply({str(number): group.report()}, None)
        return tracker.ack_lsn


def allowed(pending: list[PendingShape], last_seen: LogOffset) -> int:
    """The ack that the shapes allow."""
    return min((shape.last_flushed.tx_offset - 1 for shape in pending), default=last_seen.tx_offset)


@given(RANDOMS, st.sampled_from([1, 3, 40]), st.sampled_from([3, 40]), st.sampled_from([2, 4096]))
def test_holders_are_the_first_of_all_shapes(rng: Random, groups: int, shapes: int, max_pending: int) -> None:
    """After each batch, whichever groups it reaches: the same shapes, order and figures, and the same ack."""
    source = Source(groups, max_pending)
    ack_lsn = -1
    for now_ms, batch in enumerate(random_group_batches(rng, shapes, transactions=12)):
        note(f"batch {batch}")
        source.apply(batch, now_ms)
        pending, tracker = source.pending(), source.tracker
        assert tracker.holders == tuple(pending[:HOLDERS])
        assert tracker.pending_shapes == len(pending)
        ack_lsn = max(ack_lsn, allowed(pending, source.last_seen))
        assert tracker.ack_lsn == ack_lsn
        held = [tracker.held_bytes(shape) for shape in tracker.holders]
        assert held == sorted(held, reverse=True)
        assert held[:1] == [max(source.last_seen.tx_offset - ack_lsn, 0)][: len(held)]


@given(RANDOMS, st.sampled_from([1, 3, 16]), st.sampled_from([2, 3, 40]))
def test_ack_if_removed_is_the_ack_without_that_shape(rng: Random, groups: int, shapes: int) -> None:
    """By definition, and by a removal of that shape from a copy of its group."""
    source = Source(groups, 4096)
    for now_ms, batch in enumerate(random_group_batches(rng, shapes, transactions=8)):
        note(f"batch {batch}")
        source.apply(batch, now_ms)
        ack_lsn, last_seen, pending = source.tracker.ack_lsn, source.last_seen, source.pending()
        for rank, holder in enumerate(source.tracker.holders):
            told = source.tracker.ack_if_removed(rank)
            others = [shape for shape in pending if shape.shape_id != holder.shape_id]
            assert told == max(ack_lsn, min(allowed(others, last_seen), last_seen.tx_offset))
            assert told == min(source.ack_without(holder.shape_id), max(ack_lsn, last_seen.tx_offset))


@given(RANDOMS, st.sampled_from([1, 3, 16]), st.sampled_from([2, 3, 12, 40]))
def test_ack_if_all_removed_is_the_ack_without_the_first_shapes(rng: Random, groups: int, shapes: int) -> None:
    """By definition, and by a removal of the first one, two, … from copies of their groups.

    It is unknown only where the next shape is not listed.
    """
    source = Source(groups, 4096)
    for now_ms, batch in enumerate(random_group_batches(rng, shapes, transactions=8)):
        note(f"batch {batch}")
        source.apply(batch, now_ms)
        ack_lsn, last_seen, pending = source.tracker.ack_lsn, source.last_seen, source.pending()
        names = [holder.shape_id for holder in source.tracker.holders]
        for rank in range(len(names)):
            told = source.tracker.ack_if_all_removed(rank)
            others = [shape for shape in pending if shape.shape_id not in names[: rank + 1]]
            if told is None:
                assert rank == len(names) - 1 == HOLDERS - 1
                assert others
                continue
            assert told == max(ack_lsn, min(allowed(others, last_seen), last_seen.tx_offset))
            assert told == min(source.ack_without(*names[: rank + 1]), max(ack_lsn, last_seen.tx_offset))
