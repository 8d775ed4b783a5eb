"""Event orders that have broken such trackers, cut into micro-batches and run through the query.

Each story is its own source, and all of them share one stream: a single query runs them side by side, which also shows
that sources do not affect each other. A story lists its batches as *(events, the batch's expected ack, or None for no
new row)*. While the transaction at T is the first pending one, the ack is T − 2; while it is partly flushed, T − 1.
"""

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource

Batch = tuple[list[FragmentEvent | FlushNotification], int | None]
Story = Callable[[SampleSource], Iterator[Batch]]


def flush_arrives_before_its_transaction(s: SampleSource) -> Iterator[Batch]:
    """It counts once the transaction arrives, and does not cover another shape's transaction in between."""
    yield [s.transaction(2000), s.flushed("a", 3000)], 2000
    yield [s.transaction(2500, "b")], 2498
    yield [s.transaction(3000, "a")], None
    yield [s.flushed("b", 2500)], 3000


def flush_between_two_fragments_and_a_commit_without_changes(s: SampleSource) -> Iterator[Batch]:
    """No further flush will arrive: the commit alone completes the transaction."""
    yield [s.fragment(2000, 4, {"a": 4})], 1998
    yield [s.flushed("a", 2000, 4)], None
    yield [s.fragment(2000, 6, {"a": None}, commit=True)], 2000


def flush_below_the_cursor_and_a_commit_without_changes(s: SampleSource) -> Iterator[Batch]:
    """The shape's last offset is well before the fragment's end, and so is the flush."""
    yield [s.fragment(2000, 198, {"a": 4, "b": 198})], 1998
    yield [s.flushed("a", 2000, 4), s.flushed("b", 2000, 198)], None
    yield [s.fragment(2000, 200, {"a": None, "b": None}, commit=True)], 2000


def commit_routed_to_a_shape_that_writes_nothing_for_it(s: SampleSource) -> Iterator[Batch]:
    """Nothing was sent, so nothing is pending."""
    yield [s.fragment(2000, 4, {"a": None}, commit=True)], 2000


def duplicate_reordered_older_and_excessive_flushes(s: SampleSource) -> Iterator[Batch]:
    """Only the greatest flush counts, and one beyond the last offset sent counts as a flush of that offset."""
    yield [s.transaction(2000, "a", op=8), s.flushed("a", 2000, 6), s.flushed("a", 2000, 2)], 1999
    yield [s.flushed("a", 2000, 4), s.flushed("a", 2000, 4)], None
    yield [s.flushed("a", 2000, 9), s.flushed("a", 1500, 0)], 2000
    yield [s.transaction(3000, "b")], 2998


def capture_resends_what_was_flushed(s: SampleSource) -> Iterator[Batch]:
    """The shapes report no flush again: fragments that were seen before make nothing pending."""
    yield [s.transaction(2000, "a"), s.transaction(3000, "b"), s.flushed("a", 2000), s.flushed("b", 3000)], 3000
    s.restart(2001)
    yield [s.transaction(3000, "b"), s.transaction(4000, "a")], 3998
    yield [s.flushed("a", 4000)], 4000


def capture_resends_half_a_transaction_with_other_cuts(s: SampleSource) -> Iterator[Batch]:
    """Only the new part of the overlapping fragment counts."""
    yield [s.fragment(2000, 198, {"a": 150}), s.flushed("a", 2000, 150)], None
    s.restart(1500)
    yield [s.fragment(2000, 100, {"a": 50})], None
    yield [s.fragment(2000, 300, {"a": 250, "b": 300}, commit=True)], 1998
    yield [s.flushed("b", 2000, 300)], 1999
    yield [s.flushed("a", 2000, 250)], 2000


def steady_overlapping_load_keeps_the_ack_moving(s: SampleSource) -> Iterator[Batch]:
    """Some shape is always pending."""
    yield [s.transaction(2000, "a"), s.transaction(3000, "b")], 1998
    yield [s.flushed("a", 2000), s.transaction(4000, "a")], 2998
    yield [s.flushed("b", 3000), s.transaction(5000, "b")], 3998
    yield [s.flushed("a", 4000), s.transaction(6000, "a")], 4998


def ack_is_just_below_the_first_pending_transaction(s: SampleSource) -> Iterator[Batch]:
    """One shape has two transactions pending and flushes the first; the others are caught up."""
    yield [s.transaction(2010, "a"), s.transaction(3000, "b"), s.transaction(4000, "a"), s.flushed("b", 3000)], 2008
    yield [s.flushed("a", 2010)], 3998


def slowest_shape_of_a_group_counts(s: SampleSource) -> Iterator[Batch]:
    """Two shapes, possibly of one group, are pending at different transactions."""
    yield [s.transaction(2010, "a"), s.transaction(4000, "b")], 2008
    yield [s.flushed("b", 4000)], None
    yield [s.flushed("a", 2010)], 4000


def shape_new_in_a_transaction_that_another_partly_flushed(s: SampleSource) -> Iterator[Batch]:
    """The group's minimum goes down, but the ack does not."""
    yield [s.fragment(2000, 8, {"a": 8}), s.flushed("a", 2000, 4)], 1999
    yield [s.fragment(2000, 10, {"a": None, "b": 10}, commit=True)], None
    yield [s.flushed("a", 2000, 8), s.flushed("b", 2000, 10)], 2000


def shape_removed_while_pending_twice(s: SampleSource) -> Iterator[Batch]:
    """The removal completes everything that the shape has pending; a repeated removal changes nothing."""
    yield [s.transaction(2000, "a"), s.transaction(3000, "a")], 1998
    yield [s.removed("a", 3000)], 3000
    yield [s.removed("a", 3000), s.transaction(4000, "b")], 3998


def shape_removed_in_mid_transaction(s: SampleSource) -> Iterator[Batch]:
    """The commit still lists the shape, without changes."""
    yield [s.fragment(2000, 8, {"a": 8, "b": 6})], 1998
    yield [s.removed("a", 2000, 8), s.flushed("b", 2000, 6)], None
    yield [s.fragment(2000, 10, {"a": None, "b": None}, commit=True)], 2000


def shape_removed_before_its_last_fragments_are_read(s: SampleSource) -> Iterator[Batch]:
    """Fragments from before the removal that are read after it are never pending."""
    yield [s.transaction(2000, "a"), s.removed("a", 3000, 4)], 2000
    yield [s.fragment(3000, 2, {"a": 2})], None
    yield [s.fragment(3000, 8, {"a": 4}, commit=True)], 3000


def commit_fragment_of_a_foreign_producer_without_a_change(s: SampleSource) -> Iterator[Batch]:
    """It ends the transaction nevertheless."""
    yield [s.fragment(2000, 198, {"a": 198}), s.fragment(2000, 199, {"a": None}, commit=True)], 1998
    yield [s.flushed("a", 2000, 198)], 2000


def split_update_is_flushed_past_its_boundary(s: SampleSource) -> Iterator[Batch]:
    """The shape's last offset is one after the fragment's."""
    yield [s.fragment(2000, 4, {"a": 5}, commit=True), s.flushed("a", 2000, 4)], 1999
    yield [s.flushed("a", 2000, 5)], 2000


def keepalive_while_pending_and_after_the_flush(s: SampleSource) -> Iterator[Batch]:
    """It advances the ack as soon as nothing is pending, whichever comes first."""
    yield [s.transaction(2000, "a"), s.keepalive(2500)], 1998
    yield [s.flushed("a", 2000)], 2500
    yield [s.keepalive(2600)], 2600


def commit_that_starts_at_a_keepalives_wal_end(s: SampleSource) -> Iterator[Batch]:
    """The keepalive at wal_end − 1 does not acknowledge the commit at wal_end."""
    yield [s.keepalive(1999), s.flushed("a", 1500)], 1999
    yield [s.transaction(2000, "a")], None
    s.restart(2000)
    yield [s.transaction(2000, "a")], None
    yield [s.flushed("a", 2000)], 2000


def fragments_of_a_transaction_in_two_batches(s: SampleSource) -> Iterator[Batch]:
    """There is no gap, and no ack in between."""
    yield [s.transaction(1500), s.fragment(2000, 8, {})], 1500
    yield [s.fragment(2000, 16, {}, commit=True)], 2000


_STORIES: list[Story] = [
    flush_arrives_before_its_transaction,
    flush_between_two_fragments_and_a_commit_without_changes,
    flush_below_the_cursor_and_a_commit_without_changes,
    commit_routed_to_a_shape_that_writes_nothing_for_it,
    duplicate_reordered_older_and_excessive_flushes,
    capture_resends_what_was_flushed,
    capture_resends_half_a_transaction_with_other_cuts,
    steady_overlapping_load_keeps_the_ack_moving,
    ack_is_just_below_the_first_pending_transaction,
    slowest_shape_of_a_group_counts,
    shape_new_in_a_transaction_that_another_partly_flushed,
    shape_removed_while_pending_twice,
    shape_removed_in_mid_transaction,
    shape_removed_before_its_last_fragments_are_read,
    commit_fragment_of_a_foreign_producer_without_a_change,
    split_update_is_flushed_past_its_boundary,
    keepalive_while_pending_and_after_the_flush,
    commit_that_starts_at_a_keepalives_wal_end,
    fragments_of_a_transaction_in_two_batches,
]


def _batches(story: Story) -> list[Batch]:
    return list(story(SampleSource(story.__name__)))


@pytest.fixture(scope="module", params=[0, 1, 16], ids=lambda groups: f"shape_groups={groups}")
def finished(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> JobFolder:
    """All stories in one stream, read by a job with each number of shape groups."""
    job = JobFolder(tmp_path_factory.mktemp("stories"))
    stories = [_batches(story) for story in _STORIES]
    for number in range(max(map(len, stories))):
        job.write([event for batches in stories if number < len(batches) for event in batches[number][0]])
    job.run(spark, shape_groups=request.param)
    return job


@pytest.mark.parametrize("story", _STORIES, ids=lambda story: story.__name__)
def test_story(finished: JobFolder, story: Story) -> None:
    """Each batch gives the ack that its story expects, and no row where none is expected."""
    expected = {number: ack_lsn for number, (_, ack_lsn) in enumerate(_batches(story)) if ack_lsn is not None}
    assert finished.ack_lsns(story.__name__) == expected
