"""Event orders that have broken such trackers, cut into micro-batches and run through the query.

Each story is a source of its own, and all of them share one stream: so a single query runs them side by side, and every
story also shows that the others do not touch it. A story lists its batches as *(events, the ack expected of the batch,
or None for no new row)*. While the transaction at T is the first that is pending, the ack is T − 2; while it is
flushed in part, T − 1.
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
    """It counts when the transaction comes, and does not cover another shape's transaction in between."""
    yield [s.transaction(2000), s.flushed("a", 3000)], 2000
    yield [s.transaction(2500, "b")], 2498
    yield [s.transaction(3000, "a")], None
    yield [s.flushed("b", 2500)], 3000


def flush_between_two_fragments_and_a_commit_that_brings_nothing(s: SampleSource) -> Iterator[Batch]:
    """No further flush will ever come: the commit alone completes the transaction."""
    yield [s.fragment(2000, 4, {"a": 4})], 1998
    yield [s.flushed("a", 2000, 4)], None
    yield [s.fragment(2000, 6, {"a": None}, commit=True)], 2000


def flush_below_the_cursor_and_a_commit_that_brings_nothing(s: SampleSource) -> Iterator[Batch]:
    """The shape's last offset lies well before the fragment's end, and so does the flush."""
    yield [s.fragment(2000, 198, {"a": 4, "b": 198})], 1998
    yield [s.flushed("a", 2000, 4), s.flushed("b", 2000, 198)], None
    yield [s.fragment(2000, 200, {"a": None, "b": None}, commit=True)], 2000


def commit_routed_to_a_shape_that_writes_nothing_for_it(s: SampleSource) -> Iterator[Batch]:
    """Nothing was sent, so nothing is owed."""
    yield [s.fragment(2000, 4, {"a": None}, commit=True)], 2000


def duplicate_reordered_older_and_excessive_flushes(s: SampleSource) -> Iterator[Batch]:
    """Only the greatest counts, and one beyond what was sent counts for what was sent."""
    yield [s.transaction(2000, "a", op=8), s.flushed("a", 2000, 6), s.flushed("a", 2000, 2)], 1999
    yield [s.flushed("a", 2000, 4), s.flushed("a", 2000, 4)], None
    yield [s.flushed("a", 2000, 9), s.flushed("a", 1500, 0)], 2000
    yield [s.transaction(3000, "b")], 2998


def capture_resends_what_was_flushed(s: SampleSource) -> Iterator[Batch]:
    """The shapes will say nothing again: what was seen before registers nothing twice."""
    yield [s.transaction(2000, "a"), s.transaction(3000, "b"), s.flushed("a", 2000), s.flushed("b", 3000)], 3000
    s.restart(2001)
    yield [s.transaction(3000, "b"), s.transaction(4000, "a")], 3998
    yield [s.flushed("a", 4000)], 4000


def capture_resends_half_a_transaction_cut_otherwise(s: SampleSource) -> Iterator[Batch]:
    """The overlapping fragment brings what is new in it, and nothing twice."""
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
    """One shape has two transactions pending and has flushed the first; the others are done."""
    yield [s.transaction(2010, "a"), s.transaction(3000, "b"), s.transaction(4000, "a"), s.flushed("b", 3000)], 2008
    yield [s.flushed("a", 2010)], 3998


def slowest_shape_of_a_group_counts(s: SampleSource) -> Iterator[Batch]:
    """Two shapes, perhaps of one group, pending at different transactions."""
    yield [s.transaction(2010, "a"), s.transaction(4000, "b")], 2008
    yield [s.flushed("b", 4000)], None
    yield [s.flushed("a", 2010)], 4000


def shape_new_in_a_transaction_that_another_flushed_in_part(s: SampleSource) -> Iterator[Batch]:
    """The group's minimum goes down, the ack does not."""
    yield [s.fragment(2000, 8, {"a": 8}), s.flushed("a", 2000, 4)], 1999
    yield [s.fragment(2000, 10, {"a": None, "b": 10}, commit=True)], None
    yield [s.flushed("a", 2000, 8), s.flushed("b", 2000, 10)], 2000


def shape_removed_while_pending_twice(s: SampleSource) -> Iterator[Batch]:
    """The removal completes all that the shape owes; said again, it changes nothing."""
    yield [s.transaction(2000, "a"), s.transaction(3000, "a")], 1998
    yield [s.removed("a", 3000)], 3000
    yield [s.removed("a", 3000), s.transaction(4000, "b")], 3998


def shape_removed_in_mid_transaction(s: SampleSource) -> Iterator[Batch]:
    """Its commit still lists the shape, with nothing."""
    yield [s.fragment(2000, 8, {"a": 8, "b": 6})], 1998
    yield [s.removed("a", 2000, 8), s.flushed("b", 2000, 6)], None
    yield [s.fragment(2000, 10, {"a": None, "b": None}, commit=True)], 2000


def shape_removed_before_its_last_fragments_are_read(s: SampleSource) -> Iterator[Batch]:
    """What is read later of the time before the removal is complete from the start."""
    yield [s.transaction(2000, "a"), s.removed("a", 3000, 4)], 2000
    yield [s.fragment(3000, 2, {"a": 2})], None
    yield [s.fragment(3000, 8, {"a": 4}, commit=True)], 3000


def commit_fragment_of_a_foreign_producer_without_a_change(s: SampleSource) -> Iterator[Batch]:
    """It ends the transaction all the same."""
    yield [s.fragment(2000, 198, {"a": 198}), s.fragment(2000, 199, {"a": None}, commit=True)], 1998
    yield [s.flushed("a", 2000, 198)], 2000


def split_update_is_flushed_past_its_boundary(s: SampleSource) -> Iterator[Batch]:
    """The shape's last offset is one past the fragment's."""
    yield [s.fragment(2000, 4, {"a": 5}, commit=True), s.flushed("a", 2000, 4)], 1999
    yield [s.flushed("a", 2000, 5)], 2000


def keepalive_while_pending_and_after_the_flush(s: SampleSource) -> Iterator[Batch]:
    """It moves the ack as soon as nothing is pending, whichever comes first."""
    yield [s.transaction(2000, "a"), s.keepalive(2500)], 1998
    yield [s.flushed("a", 2000)], 2500
    yield [s.keepalive(2600)], 2600


def commit_that_starts_at_a_keepalives_wal_end(s: SampleSource) -> Iterator[Batch]:
    """The keepalive at wal_end − 1 leaves the commit at wal_end unacknowledged."""
    yield [s.keepalive(1999), s.flushed("a", 1500)], 1999
    yield [s.transaction(2000, "a")], None
    s.restart(2000)
    yield [s.transaction(2000, "a")], None
    yield [s.flushed("a", 2000)], 2000


def fragments_of_a_transaction_in_two_batches(s: SampleSource) -> Iterator[Batch]:
    """No gap, and no ack in between."""
    yield [s.transaction(1500), s.fragment(2000, 8, {})], 1500
    yield [s.fragment(2000, 16, {}, commit=True)], 2000


_STORIES: list[Story] = [
    flush_arrives_before_its_transaction,
    flush_between_two_fragments_and_a_commit_that_brings_nothing,
    flush_below_the_cursor_and_a_commit_that_brings_nothing,
    commit_routed_to_a_shape_that_writes_nothing_for_it,
    duplicate_reordered_older_and_excessive_flushes,
    capture_resends_what_was_flushed,
    capture_resends_half_a_transaction_cut_otherwise,
    steady_overlapping_load_keeps_the_ack_moving,
    ack_is_just_below_the_first_pending_transaction,
    slowest_shape_of_a_group_counts,
    shape_new_in_a_transaction_that_another_flushed_in_part,
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
def told(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    """All stories in one stream, read by a job with some number of shape groups."""
    job = JobFolder(tmp_path_factory.mktemp("stories"))
    stories = [_batches(story) for story in _STORIES]
    for number in range(max(map(len, stories))):
        job.write([event for batches in stories if number < len(batches) for event in batches[number][0]])
    job.run(spark, shape_groups=request.param)
    return job


@pytest.mark.parametrize("story", _STORIES, ids=lambda story: story.__name__)
def test_story(told: JobFolder, story: Story) -> None:
    """Each batch gives the ack that its story expects, and no row where none is expected."""
    expected = {number: ack_lsn for number, (_, ack_lsn) in enumerate(_batches(story)) if ack_lsn is not None}
    assert told.ack_lsns(story.__name__) == expected
