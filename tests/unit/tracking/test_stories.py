"""Event orders that have broken trackers like this one, each as a flat script against the core.

A script runs micro-batches in the simulated job and compares the ack after each. Offsets are plain numbers: commit
LSN and operation. With something pending in the transaction at 2000 the ack is 1998, or 1999 after a partial flush of
it: both confirm everything before it, and not it.
"""

import pytest

from flushtracker.errors import GapError
from flushtracker.events.records import flush_keys
from flushtracker.tracking.group_report import PendingShape
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.source_tracker import SourceTracker
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import listed_at
from tests.support.ack_rows import AckRows, acks_of
from tests.support.group_view import ShapeFlush, ShapeFragment, apply_batch
from tests.support.sample_source import SampleSource
from tests.support.simulated_job import Checkpoint, DeletedFlush, KilledError, Record, SimulatedJob
from tests.support.wal_history import Event

EVERY_GROUPING = pytest.mark.parametrize("shape_groups", [0, 1, 3, 16])


class Story:
    """One source, one job; ``batch`` runs a micro-batch and returns the ack after it."""

    def __init__(self, shape_groups: int = 16) -> None:
        self.source = SampleSource()
        self.table = AckRows()
        self.shape_groups = shape_groups
        self.job = SimulatedJob(self.table, shape_groups=shape_groups)

    def batch(self, *events: Record) -> int:
        self.job.run_batch(events)
        return self.ack_lsn

    @property
    def ack_lsn(self) -> int:
        return self.job.ack_lsn(self.source.name)

    @property
    def is_idle(self) -> bool:
        return self.job.is_caught_up(self.source.name)

    def restart(self, checkpoint: Checkpoint | None = None) -> None:
        """Restart the job from what it has committed, or from another checkpoint."""
        checkpoint = self.job.checkpoint if checkpoint is None else checkpoint
        self.job = SimulatedJob(self.table, checkpoint, shape_groups=self.shape_groups)

    def killed(self, kill: str, *events: Event) -> None:
        """Kill the job in a batch, and restart it from what it had committed before."""
        with pytest.raises(KilledError):
            self.job.run_batch(events, kill=kill)
        self.restart()


# Flushes ahead of their transactions


@EVERY_GROUPING
def test_flush_that_arrives_before_its_transaction_counts(shape_groups: int) -> None:
    """A flush in an earlier batch completes its transaction once that arrives: no other flush will follow."""
    story = Story(shape_groups)
    assert story.batch(story.source.transaction(1100, "users")) == 1098
    assert story.batch(story.source.flushed("users", 1200, 4)) == 1100
    assert story.batch(story.source.transaction(1200, "users", op=4)) == 1200
    assert story.is_idle


@EVERY_GROUPING
def test_flush_ahead_of_the_stream_acknowledges_nothing_unread(shape_groups: int) -> None:
    """A flush at 1300 says nothing about orders' transaction at 1200, which has not been read yet."""
    story = Story(shape_groups)
    first, second, third = (
        story.source.transaction(lsn, shape) for lsn, shape in ((1100, "users"), (1200, "orders"), (1300, "users"))
    )
    assert story.batch(first, story.source.flushed("users", 1300)) == 1100
    assert story.batch(second) == 1198
    assert story.batch(third) == 1198
    assert story.batch(story.source.flushed("orders", 1200)) == 1300


# Flushes inside a transaction


@EVERY_GROUPING
def test_commit_alone_completes_what_was_flushed_in_mid_transaction(shape_groups: int) -> None:
    """users flushes between two fragments, and the commit fragment has nothing for it: no further flush will follow."""
    story = Story(shape_groups)
    assert story.batch(story.source.fragment(1100, 2, {"users": 2})) == 1098
    assert story.batch(story.source.flushed("users", 1100, 2)) == 1098
    commit = story.source.fragment(1100, 6, {"users": None, "orders": 6}, commit=True)
    assert story.batch(commit, story.source.flushed("orders", 1100, 6)) == 1100
    assert story.is_idle


@EVERY_GROUPING
def test_flush_in_mid_transaction_counts_below_the_cursor_too(shape_groups: int) -> None:
    """The same, but orders' later fragment has moved the cursor past users' flush before it arrives."""
    story = Story(shape_groups)
    story.batch(story.source.fragment(1100, 2, {"users": 2}))
    story.batch(story.source.fragment(1100, 4, {"orders": 4}))
    assert story.batch(story.source.flushed("users", 1100, 2)) == 1098
    assert story.batch(story.source.fragment(1100, 6, {"users": None, "orders": 6}, commit=True)) == 1098
    assert story.batch(story.source.flushed("orders", 1100, 6)) == 1100
    assert story.is_idle


# Commits without changes


def test_commit_for_a_shape_that_writes_nothing_needs_no_flush() -> None:
    """A commit may list a shape for which no fragment had anything."""
    story = Story()
    assert story.batch(story.source.fragment(1100, 2, {"users": None}, commit=True)) == 1100
    assert story.is_idle


@EVERY_GROUPING
@pytest.mark.parametrize("op", [None, 0])
def test_fragment_missing_after_a_list_part_of_another_run_is_a_gap(shape_groups: int, op: int | None) -> None:
    """Kafka has lost the last change of a shape that was not listed yet; the ack would not wait for its flush."""
    story = Story(shape_groups)
    listed, other = sorted(["users", "orders"], key=listed_at)
    assert story.batch(story.source.fragment(1100, listed_at(listed), {listed: 0})) == 1098
    story.source.restart(1000)
    first = story.source.fragment(1100, 0, {listed: 0} | ({} if op is None else {other: op}))
    lost = story.source.fragment(1100, 2, {other: 2})
    commit = story.source.fragment(1100, 4, {listed: 4, other: None}, commit=True)
    with pytest.raises(GapError, match=r"fragment 0/44C\+4 .* follows 0/44C\+2, but the chain ends at 0/44C\+0; "):
        story.batch(first, commit)
    story.restart()
    assert story.batch(first) == 1098
    with pytest.raises(GapError, match=r"but the chain ends at 0/44C\+0; "):
        story.batch(commit)
    story.restart()
    assert story.batch(commit, lost) == 1098
    assert story.batch(story.source.flushed(listed, 1100, 4), story.source.flushed(other, 1100, 2)) == 1100
    assert story.is_idle


# Duplicate, reordered and early flushes


@EVERY_GROUPING
def test_repeated_reordered_and_older_flushes_revert_nothing(shape_groups: int) -> None:
    """The furthest flush counts, whenever it arrives; the others change nothing."""
    story = Story(shape_groups)
    story.batch(*(story.source.transaction(lsn, "users", op=4) for lsn in (1100, 1200, 1300)))
    assert story.batch(story.source.flushed("users", 1200, 4), story.source.flushed("users", 1100, 4)) == 1298
    assert story.batch(story.source.flushed("users", 1100, 2)) == 1298
    assert story.batch(story.source.flushed("users", 1300, 4)) == 1300
    assert story.batch(story.source.flushed("users", 1200, 4), story.source.flushed("users", 1300, 4)) == 1300
    assert story.is_idle


def test_flush_beyond_last_sent_covers_only_what_is_known() -> None:
    """A flush past everything sent completes it, and covers the shape's next transaction up to its offset."""
    story = Story()
    assert story.batch(story.source.transaction(1100, "users"), story.source.flushed("users", 1200)) == 1100
    assert story.batch(story.source.transaction(1200, "users", op=2)) == 1199
    assert story.batch(story.source.flushed("users", 1200, 2)) == 1200


@EVERY_GROUPING
@pytest.mark.parametrize("flushed_op", [16, 17, 18, 19])
def test_rows_of_the_writer_itself_neither_hold_nor_evict_its_shape(shape_groups: int, flushed_op: int) -> None:
    """A writer adds rows of its own after what it was sent, and flushes at one of them, before or past the boundary.

    Where a flush must equal the last offset sent, or the transaction's boundary, such a shape is pending for ever, and
    a watchdog removes it though it is healthy. ``evict`` takes only shapes that hold the ack, and none does here.
    """
    story = Story(shape_groups)
    assert story.batch(story.source.fragment(1100, 18, {"users": 16}, commit=True)) == 1098
    assert story.batch(story.source.flushed("users", 1100, flushed_op)) == 1100
    assert story.is_idle


@EVERY_GROUPING
def test_flush_before_the_last_row_sent_is_partial_whatever_the_writer_adds(shape_groups: int) -> None:
    """The other direction: at (1100, 17) the row at (1100, 18) is not durable, and nothing may round that up."""
    story = Story(shape_groups)
    assert story.batch(story.source.transaction(1100, "users", op=18), story.source.flushed("users", 1100, 17)) == 1099
    assert not story.is_idle
    assert story.batch(story.source.flushed("users", 1100, 19)) == 1100
    assert story.is_idle


# Resends


@EVERY_GROUPING
def test_resent_transactions_register_nothing_twice(shape_groups: int) -> None:
    """Capture restarts and resends what users has flushed: users will not report that again."""
    story = Story(shape_groups)
    sent = [story.source.transaction(1100, "users"), story.source.transaction(1200, "users", "orders")]
    assert story.batch(*sent, story.source.flushed("users", 1200)) == 1198
    story.source.restart(confirmed_lsn=1199)
    resent = story.source.transaction(1200, "users", "orders")
    assert story.batch(resent, story.source.transaction(1300, "orders")) == 1198
    assert story.batch(story.source.flushed("orders", 1300)) == 1300
    assert story.is_idle


@EVERY_GROUPING
def test_resend_may_cut_an_open_transaction_into_other_fragments(shape_groups: int) -> None:
    """Capture dies inside a transaction; the resend has it whole, and only its new part becomes pending."""
    story = Story(shape_groups)
    assert story.batch(story.source.fragment(1100, 2, {"users": 2}), story.source.flushed("users", 1100, 2)) < 1100
    story.source.restart(confirmed_lsn=1000)
    resent = story.source.fragment(1100, 6, {"users": 2, "orders": 6}, commit=True)
    assert story.batch(resent) == 1098
    assert story.batch(story.source.flushed("orders", 1100, 6)) == 1100
    assert story.is_idle


def test_restart_in_mid_resend_still_ends_at_the_last_commit() -> None:
    """The last batch before the restart had nothing but a resent commit: the flush still acknowledges the later one."""
    story = Story()
    story.batch(story.source.transaction(1100, "users"), story.source.transaction(1200, "users"))
    story.source.restart(confirmed_lsn=1000)
    assert story.batch(story.source.transaction(1100, "users")) == 1098
    story.restart()
    assert story.batch(story.source.flushed("users", 1200)) == 1200


def test_original_and_resend_in_one_batch_count_once() -> None:
    """Both cuts of a transaction in the same batch, in any order, are one transaction."""
    story = Story()
    sent = [story.source.fragment(1100, 2, {"users": 2}), story.source.fragment(1100, 4, {"users": 4}, commit=True)]
    story.source.restart(confirmed_lsn=1000)
    resent = [story.source.fragment(1100, 0, {}), story.source.fragment(1100, 4, {"users": 4}, commit=True)]
    assert story.batch(resent[1], sent[0], resent[0], sent[1]) == 1098
    assert story.batch(story.source.flushed("users", 1100, 4)) == 1100
    assert story.job.kept_shapes() == set()


# Restarts


def test_restart_from_the_checkpoint_continues_where_it_stopped() -> None:
    """What was pending still is, and a flush from before the restart still counts."""
    story = Story()
    story.batch(story.source.transaction(1100, "users", "orders"), story.source.flushed("users", 1200))
    story.restart()
    assert story.batch(story.source.transaction(1200, "users")) == 1098
    story.restart()
    assert story.batch(story.source.flushed("orders", 1100)) == 1200


@pytest.mark.parametrize("kill", ["before ack", "before commit"])
def test_killed_batch_gives_the_same_ack_and_one_row(kill: str) -> None:
    """Killed between state and ack, or between ack and batch commit, the rerun of the batch adds one row."""
    story = Story()
    story.batch(story.source.transaction(1100, "users"))
    batch: list[Event] = [story.source.transaction(1200, "users"), story.source.flushed("users", 1200)]
    story.killed(kill, *batch)
    assert story.batch(*batch) == 1200
    assert acks_of(story.table, story.source.name) == [1098, 1200]


def test_old_checkpoint_neither_reverts_nor_repeats_an_ack() -> None:
    """From an old checkpoint the job writes nothing until it passes the table's last ack."""
    story = Story()
    story.batch(story.source.transaction(1100, "users"))
    old = story.job.checkpoint
    later: list[list[Event]] = [
        [story.source.flushed("users", 1100), story.source.transaction(1200, "users")],
        [story.source.flushed("users", 1200), story.source.transaction(1300, "users")],
    ]
    assert [story.batch(*batch) for batch in later] == [1198, 1298]
    rows = list(story.table.rows)
    story.restart(old)
    assert [story.batch(*batch) for batch in later] == [1298, 1298]
    assert story.table.rows == rows
    assert story.batch(story.source.flushed("users", 1300)) == 1300


@EVERY_GROUPING
def test_lost_checkpoint_costs_a_resend_and_nothing_else(shape_groups: int) -> None:
    """The table's last ack and what capture sends after it are enough; everything below the ack is done."""
    story = Story(shape_groups)
    story.batch(*(story.source.transaction(lsn, "users", "orders") for lsn in (1100, 1200, 1300)))
    flushes = [story.source.flushed("users", 1300), story.source.flushed("orders", 1200)]
    assert story.batch(*flushes) == 1298
    story.restart(Checkpoint())
    story.source.restart(confirmed_lsn=story.ack_lsn + 1)
    assert story.batch(story.source.transaction(1300, "users", "orders")) == 1298
    assert story.batch(*flushes) == 1298
    assert story.batch(story.source.flushed("orders", 1300)) == 1300
    assert story.is_idle


def test_lost_ack_table_is_rewritten_from_the_committed_state() -> None:
    """With the checkpoint kept and the table gone, the start writes the ack again, before any further event."""
    story = Story()
    story.batch(story.source.transaction(1100, "users"), story.source.flushed("users", 1100))
    story.table = AckRows()
    story.restart()
    assert acks_of(story.table, story.source.name) == [1100]


# Steady load


@EVERY_GROUPING
def test_ack_keeps_moving_while_some_shape_is_always_pending(shape_groups: int) -> None:
    """Under steady overlapping load the ack stays one transaction behind, though the tracker is never empty."""
    story = Story(shape_groups)
    story.batch(story.source.transaction(1100, "users"))
    shapes = ["orders", "users"] * 20
    for before, (index, shape_id) in zip(["users", *shapes], enumerate(shapes), strict=False):
        lsn = 1200 + 100 * index
        assert story.batch(story.source.transaction(lsn, shape_id), story.source.flushed(before, lsn - 100)) == lsn - 2
        assert not story.is_idle


# Several pending transactions


@EVERY_GROUPING
def test_ack_is_just_below_the_first_pending_transaction(shape_groups: int) -> None:
    """users has flushed 1010 but not 2000, the others are done: just below 2000, not below 1010."""
    story = Story(shape_groups)
    sent = [(1010, "users"), (1100, "orders"), (1900, "orders"), (2000, "users")]
    story.batch(*(story.source.transaction(*each) for each in sent))
    assert story.batch(story.source.flushed("users", 1010), story.source.flushed("orders", 1900)) == 1998


@EVERY_GROUPING
def test_ack_is_below_the_least_of_several_shapes(shape_groups: int) -> None:
    """users is pending at 1010, orders at 2000, in one group or in two: below 1010."""
    story = Story(shape_groups)
    assert story.batch(story.source.transaction(1010, "users"), story.source.transaction(2000, "orders")) == 1008
    assert story.batch(story.source.flushed("orders", 2000)) == 1008
    assert story.batch(story.source.flushed("users", 1010)) == 2000


# Removals


@EVERY_GROUPING
def test_removed_shape_no_longer_blocks_the_ack(shape_groups: int) -> None:
    """Removed while pending, and reported twice: the ack advances at once, and nothing of the shape is kept."""
    story = Story(shape_groups)
    assert story.batch(story.source.transaction(1100, "users")) == 1098
    assert story.batch(story.source.removed("users", 1100)) == 1100
    assert story.batch(story.source.removed("users", 1100)) == 1100
    assert story.job.kept_shapes() == set()


@EVERY_GROUPING
def test_shape_removed_in_mid_transaction_needs_no_flush_of_it(shape_groups: int) -> None:
    """users is removed after operation 2; the commit still lists it, without anything for it."""
    story = Story(shape_groups)
    story.batch(story.source.fragment(1100, 2, {"users": 2, "orders": 0}))
    story.batch(story.source.removed("users", 1100, 2))
    assert story.batch(story.source.fragment(1100, 4, {"users": None, "orders": 4}, commit=True)) == 1098
    assert story.batch(story.source.flushed("orders", 1100, 4)) == 1100
    assert story.is_idle


@EVERY_GROUPING
def test_removal_before_the_last_fragments_are_read_counts_for_them(shape_groups: int) -> None:
    """The removal arrives before two transactions of the shape: neither needs a flush."""
    story = Story(shape_groups)
    assert story.batch(story.source.removed("users", 1200, 2)) == -1
    assert story.batch(story.source.transaction(1100, "users")) == 1100
    assert story.batch(story.source.fragment(1200, 2, {"users": 2})) == 1100
    assert story.batch(story.source.fragment(1200, 4, {"users": None}, commit=True)) == 1200
    assert story.job.kept_shapes() == set()


@EVERY_GROUPING
def test_removal_survives_a_resend_of_its_transaction_in_another_cut(shape_groups: int) -> None:
    """After the removal capture dies inside the transaction, and resends the whole of it as one fragment."""
    story = Story(shape_groups)
    story.batch(story.source.fragment(1100, 2, {"users": 2}))
    story.batch(story.source.removed("users", 1100, 2))
    story.source.restart(confirmed_lsn=1000)
    assert story.batch(story.source.fragment(1100, 6, {"users": 2}, commit=True)) == 1100
    assert story.is_idle
    assert story.job.kept_shapes() == set()


def test_shapes_removed_from_quiet_groups_are_forgotten_once_capture_has_deleted_their_flushes() -> None:
    """20,000 are removed, and only one shape goes on: nothing reaches the other groups but what compaction needs."""
    story, gone = Story(), [f"gone {number}" for number in range(20_000)]
    story.batch(story.source.transaction(1100, *gone), *(story.source.flushed(each, 1100) for each in gone))
    story.batch(*(story.source.removed(each, 1150) for each in gone))
    assert story.batch(story.source.transaction(1200, "goes on"), story.source.flushed("goes on", 1200)) == 1200
    kept = story.job.kept_shapes()
    assert {story.job.group_of(each) for each in kept} == {str(group) for group in range(16)} - {
        story.job.group_of("goes on")
    }
    removals = [flush_keys(story.source.name, each, "log")[1] for each in gone]
    assert story.batch(*map(DeletedFlush, removals)) == 1200
    assert story.job.kept_shapes() == set()


@EVERY_GROUPING
def test_quiet_group_forgets_removals_with_the_first_event_after_the_ack_has_passed_them(shape_groups: int) -> None:
    """Also a late flush, which it has forgotten at once; and what an ack has passed is done when it is sent again."""
    story = Story(shape_groups)
    story.batch(story.source.removed("users", 1150))
    assert story.batch(story.source.transaction(1200)) == 1200
    assert story.batch(story.source.flushed("users", 1100)) == 1200
    assert story.job.kept_shapes() == set()
    story.source.restart(confirmed_lsn=1000)
    assert story.batch(story.source.transaction(1100, "users"), story.source.transaction(1200)) == 1200
    assert story.is_idle


@EVERY_GROUPING
def test_deleted_flushes_complete_nothing(shape_groups: int) -> None:
    """Anybody's tombstone, of a shape that is pending, or of one and a source that nobody knows: nothing is kept."""
    story = Story(shape_groups)
    assert story.batch(story.source.transaction(1100, "users")) == 1098
    keys = [*flush_keys(story.source.name, "users", "log"), *flush_keys("other", "s", "log"), "", "[", '["a"]']
    assert story.batch(*map(DeletedFlush, keys)) == 1098
    assert {source for source, _ in story.job.checkpoint.states} == {story.source.name}
    assert story.batch(story.source.flushed("users", 1100)) == 1100


# Foreign producers


@EVERY_GROUPING
def test_foreign_commit_fragment_without_a_change_completes_earlier_flushes(shape_groups: int) -> None:
    """After exactly two full fragments, a commit without changes lists all shapes: their earlier flushes suffice."""
    story = Story(shape_groups)
    story.batch(story.source.fragment(1100, 198, {"users": 198}), story.source.fragment(1100, 398, {"orders": 398}))
    assert story.batch(story.source.flushed("users", 1100, 198), story.source.flushed("orders", 1100, 398)) == 1098
    assert story.batch(story.source.fragment(1100, 399, {"users": None, "orders": None}, commit=True)) == 1100
    assert story.is_idle


def test_foreign_commit_may_end_where_an_open_fragment_ended() -> None:
    """After a resend with another fragment limit the commit ends where an open fragment did, and is accepted."""
    story = Story()
    story.batch(story.source.fragment(1100, 4, {"users": 4}))
    story.source.restart(confirmed_lsn=1000)
    story.batch(story.source.fragment(1100, 4, {"users": 4}, commit=True))
    assert story.batch(story.source.flushed("users", 1100, 4)) == 1100
    assert story.job.kept_shapes() == set()


# Keepalives


@EVERY_GROUPING
@pytest.mark.parametrize("flush_at", [0, 1, 2])
def test_keepalive_changes_no_outcome_wherever_the_flush_is(shape_groups: int, flush_at: int) -> None:
    """A keepalive while users is pending, with or before or after the flush that completes it: the same ack."""
    story = Story(shape_groups)
    batches: list[list[Event]] = [[story.source.transaction(1100, "users")], [story.source.keepalive(1150)], []]
    batches[flush_at].append(story.source.flushed("users", 1100))
    assert [story.batch(*batch) for batch in batches][-1] == 1150
    assert story.is_idle


@EVERY_GROUPING
def test_commit_right_after_a_keepalive_is_not_confirmed_by_it(shape_groups: int) -> None:
    """The next commit starts at the keepalive's wal_end: after a reconnect it is resent, and becomes pending."""
    story = Story(shape_groups)
    story.batch(story.source.transaction(1100, "users"), story.source.flushed("users", 1100))
    assert story.batch(story.source.keepalive(1150)) == 1150
    # The slot's confirmed LSN is 1151, and PostgreSQL sends every commit from there on.
    story.source.restart(confirmed_lsn=story.ack_lsn + 1)
    assert story.batch(story.source.transaction(1151, "users")) == 1150
    story.restart(Checkpoint())
    story.source.restart(confirmed_lsn=story.ack_lsn + 1)
    assert story.batch(story.source.transaction(1151, "users")) == 1150
    assert story.batch(story.source.flushed("users", 1151)) == 1151


# Flushes of removed shapes that are deleted


@EVERY_GROUPING
def test_removal_that_was_deleted_after_its_ack_is_not_needed_again(shape_groups: int) -> None:
    """The job is killed between ack and commit. When it runs the batch again, the removal is not in the topic."""
    story = Story(shape_groups)
    assert story.batch(story.source.transaction(1100, "users")) == 1098
    keepalive = story.source.keepalive(1200)
    story.killed("before commit", story.source.removed("users", 1150), keepalive)
    assert story.ack_lsn == 1200
    assert story.batch(keepalive) == 1200
    assert story.is_idle


@EVERY_GROUPING
def test_removal_that_was_deleted_does_not_hold_the_shapes_of_its_group(shape_groups: int) -> None:
    """Where another shape is pending, the group finds out with its next event."""
    story = Story(shape_groups)
    story.batch(story.source.transaction(1100, "users"), story.source.transaction(1200, "orders"))
    story.killed("before commit", story.source.removed("users", 1150))
    assert story.ack_lsn == 1198
    assert story.batch(story.source.flushed("orders", 1200)) == 1200
    assert story.is_idle


@EVERY_GROUPING
def test_transactions_before_the_ack_that_are_read_again_need_no_flush(shape_groups: int) -> None:
    """An older checkpoint reads them again, and neither the removal nor the flush of the shape that was removed."""
    story = Story(shape_groups)
    story.batch(story.source.transaction(1050, "orders"), story.source.flushed("orders", 1050))
    older = story.job.checkpoint
    again = story.source.transaction(1100, "users"), story.source.transaction(1200, "orders")
    assert story.batch(*again, story.source.removed("users", 1150), story.source.flushed("orders", 1200)) == 1200
    story.restart(older)
    assert story.batch(*again) == 1200
    assert story.is_idle
    assert story.batch(story.source.transaction(1300, "orders")) == 1298
    assert story.batch(story.source.flushed("orders", 1300)) == 1300


@EVERY_GROUPING
def test_what_a_shape_has_not_flushed_after_the_ack_stays_pending(shape_groups: int) -> None:
    """An ack completes what is at or below it, and no more: not even of the shapes that it concerns."""
    story = Story(shape_groups)
    story.batch(story.source.transaction(1100, "users"), story.source.transaction(1200, "users"))
    story.killed("before commit", story.source.flushed("users", 1100))
    assert story.ack_lsn == 1198
    assert story.batch(story.source.transaction(1300, "orders")) == 1198
    assert story.batch(story.source.flushed("orders", 1300)) == 1198
    assert story.batch(story.source.flushed("users", 1200)) == 1300


# Stalls


def test_dead_writer_is_noticed_without_a_further_event() -> None:
    """Nothing arrives any more, not even a batch: the tracker knows since when the shape makes no progress."""
    group = ShapeGroup(LogOffset.before_all())
    fragment = ShapeFragment("users", LogOffset(1100, 0), LogOffset(1100, 0), is_commit=True)
    apply_batch(group, [fragment], [], now_ms=5_000, max_pending=4096)
    tracker = SourceTracker()
    tracker.apply({"0": group.report()}, None)
    assert tracker.holders == (PendingShape(LogOffset(1099, 0), "users", since_ms=5_000, transactions=1),)
    assert tracker.pending_since_ms() == [5_000]


def test_progress_restarts_the_grace_period() -> None:
    """A partial flush is progress; a further transaction or a repeated flush is not."""
    group = ShapeGroup(LogOffset.before_all())
    fragments = [ShapeFragment("users", LogOffset(lsn, 0), LogOffset(lsn, 0), is_commit=True) for lsn in (1100, 1200)]
    apply_batch(group, fragments[:1], [], now_ms=5_000, max_pending=4096)
    apply_batch(group, fragments[1:], [], now_ms=9_000, max_pending=4096)
    assert since_ms(group) == 5_000
    apply_batch(group, [], [ShapeFlush("users", LogOffset(1100, 0))], now_ms=20_000, max_pending=4096)
    assert since_ms(group) == 20_000
    apply_batch(group, [], [ShapeFlush("users", LogOffset(1100, 0))], now_ms=30_000, max_pending=4096)
    assert since_ms(group) == 20_000


def since_ms(group: ShapeGroup) -> int:
    pending = group.report().pending
    assert pending is not None
    return pending.since_ms


# Other timelines, and gaps


def test_another_timeline_is_tracked_separately() -> None:
    """After a promotion the LSNs overlap: a flush of the old timeline changes nothing of the new one."""
    old, new = SampleSource("7301/1/shapes"), SampleSource("7301/2/shapes", confirmed_lsn=1050)
    job = SimulatedJob(AckRows(), shape_groups=1)
    job.run_batch([old.transaction(1100, "users")])
    job.run_batch([new.transaction(1080, "users")])
    job.run_batch([old.flushed("users", 1100)])
    assert (job.ack_lsn(old.name), job.ack_lsn(new.name)) == (1100, 1078)
    job.run_batch([new.flushed("users", 1080)])
    assert (job.ack_lsn(old.name), job.ack_lsn(new.name)) == (1100, 1080)


def test_missing_fragment_is_a_gap_that_names_both_offsets() -> None:
    """A fragment removed by retention, or left out by a file read out of order, stops the job before any ack."""
    story = Story()
    story.batch(story.source.transaction(1100, "users"))
    story.source.transaction(1200, "orders")
    committed = story.job.checkpoint
    message = (
        r"a\.jsonl:1: fragment 0/514\+0 of source 7301/1/shapes follows 0/4B0\+0, but the chain "
        r"ends at transaction 0/44C, read at a\.jsonl:1; the fragments in between are missing"
    )
    with pytest.raises(GapError, match=message):
        story.batch(story.source.transaction(1300, "users"), story.source.flushed("users", 1300))
    assert story.ack_lsn == 1098
    assert story.job.checkpoint is committed


def test_a_gap_sets_its_source_aside_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """Writers flush past the gap, the lost transaction comes late, capture restarts: no ack, also by a new driver."""
    broken, other = SampleSource("7301/1/shapes"), SampleSource("8302/1/shapes")
    job = SimulatedJob(AckRows(), shape_groups=1)
    job.run_batch([broken.transaction(1100, "users"), broken.flushed("users", 1100), other.transaction(1100)])
    lost = broken.transaction(1200, "orders")
    late, items = broken.transaction(1300, "users"), other.transaction(1300, "items")
    job.run_batch([late, items, other.flushed("items", 1300)])
    assert (job.ack_lsn(broken.name), job.ack_lsn(other.name)) == (1100, 1300)
    assert "source set aside source=7301/1/shapes: a.jsonl:1: fragment 0/514+0" in caplog.text
    job.run_batch([lost, broken.flushed("orders", 1200), broken.flushed("users", 1300)])
    job = SimulatedJob(job.table, job.checkpoint, shape_groups=1)
    broken.restart(1101)
    resent = [broken.transaction(1200, "orders"), broken.transaction(1300, "users"), broken.transaction(1400)]
    job.run_batch([*resent, other.transaction(1400)])
    assert (job.ack_lsn(broken.name), job.ack_lsn(other.name)) == (1100, 1400)
    status = {source.source: source.gap for source in job.watch.read().sources}
    assert status[other.name] is None
    assert "follows 0/4B0+0" in (status[broken.name] or "")
    committed = job.checkpoint
    other.transaction(1500)
    with pytest.raises(GapError, match="fragment 0/514"):
        job.run_batch([other.transaction(1600)])
    assert job.checkpoint is committed


def test_first_fragment_without_a_start_is_a_gap() -> None:
    """With neither state nor ack, what came before the first fragment is unknown."""
    story = Story()
    story.source.transaction(1100, "users")
    with pytest.raises(GapError, match=r"first fragment of source 7301/1/shapes follows 0/44C\+0 and is not marked"):
        story.batch(story.source.transaction(1200, "users"))


# Transactions over several batches


@EVERY_GROUPING
def test_transaction_over_two_batches_is_neither_gap_nor_acked_between(shape_groups: int) -> None:
    """One fragment in this batch, the commit in the next: while open, it is not acknowledged, even when flushed."""
    story = Story(shape_groups)
    story.batch(story.source.transaction(1100))
    assert story.batch(story.source.fragment(1200, 2, {"users": 2}), story.source.flushed("users", 1200, 2)) == 1100
    story.restart()
    assert story.batch(story.source.fragment(1200, 4, {"users": None}, commit=True)) == 1200


# Added shapes


@EVERY_GROUPING
def test_shape_added_while_capture_was_down_gets_nothing_of_a_resend(shape_groups: int) -> None:
    """The resend lists only the old shape, as the new one starts after it and joins with the next transaction."""
    story = Story(shape_groups)
    story.batch(story.source.transaction(1100, "users"), story.source.transaction(1200, "users"))
    story.source.restart(confirmed_lsn=1000)
    resent = [story.source.transaction(1100, "users"), story.source.transaction(1200, "users")]
    assert story.batch(*resent, story.source.flushed("users", 1200)) == 1200
    assert story.batch(story.source.transaction(1300, "users", "users-eu")) == 1298
    assert story.batch(story.source.flushed("users", 1300)) == 1298
    assert story.batch(story.source.flushed("users-eu", 1300)) == 1300


# Whose flush counts


@EVERY_GROUPING
@pytest.mark.parametrize(("writer", "other"), [("log", "own"), ("own", "log"), ("own", "other")])
def test_only_the_flush_of_a_shapes_own_writer_moves_the_ack(shape_groups: int, writer: str, other: str) -> None:
    """Another writer's flush moves nothing, before its transaction or after it, and leaves nothing behind."""
    story = Story(shape_groups)
    early = story.source.flushed("users", 2000, writer=other)
    assert story.batch(early, story.source.transaction(2000, "users", writer=writer)) == 1998
    assert story.batch(story.source.flushed("users", 2000, writer=other)) == 1998
    assert story.batch(story.source.flushed("users", 2000, writer=writer)) == 2000
    assert story.batch(story.source.transaction(3000)) == 3000
    assert story.is_idle


@EVERY_GROUPING
def test_a_shape_that_changes_hands_waits_for_each_writer_in_turn(shape_groups: int) -> None:
    """The removal ends what the old writer was sent, and the new writer's flush alone counts from then on."""
    story = Story(shape_groups)
    assert story.batch(story.source.transaction(2000, "users", writer="log")) == 1998
    assert story.batch(story.source.transaction(3000, "users", writer="own")) == 1998
    assert story.batch(story.source.flushed("users", 3000, writer="own")) == 1998
    assert story.batch(story.source.removed("users", 2500, writer="log")) == 3000
    assert story.batch(story.source.transaction(4000, "users", writer="own")) == 3998
    assert story.batch(story.source.flushed("users", 4000, writer="log")) == 3998
    assert story.batch(story.source.flushed("users", 4000, writer="own")) == 4000
