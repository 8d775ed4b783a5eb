"""In which topic a shape that begins again may be written."""

from dataclasses import replace

import pytest

from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.topic_rules import TopicFacts
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.sinks.job.feed_config import SinkTopic
from flushtracker.sinks.job.shape_feed import ShapeFeed
from flushtracker.sinks.job.stored_feeds import StoredFeeds
from flushtracker.sinks.stored_feed import StoredFeed, StoredPositions
from flushtracker.wal.log_offset import LogOffset
from tests.support.sink_world import SOURCE, STATE, SinkWorld

NEVER = "its topic has rows of an earlier incarnation: give it another one"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SinkWorld:
    return SinkWorld(monkeypatch)


def entry(incarnation: int) -> ShapeEntry:
    definition = ShapeDefinition("s", ("public", "t"), replica="full", writer="kafka")
    return ShapeEntry(SOURCE, replace(definition, incarnation=incarnation), 20_000, LogOffset(9, 0))


def written(world: SinkWorld, incarnation: int, topic: str) -> StoredFeeds:
    """The shape is written to this topic, and its state is stored and read again."""
    feeds = StoredFeeds(world.config)
    assert feeds.reason_against(SinkTopic(topic, ("g",), 1), entry(incarnation)) is None
    feed = ShapeFeed(
        feeds.feed(entry(incarnation), topic), ("g",), TopicFacts(topic, 1, {}, topic), waits_for_snapshot=False
    )
    world.kept[STATE] = [feed.stored().to_json()]
    return StoredFeeds(world.config)


def test_a_shape_never_begins_again_in_a_topic_that_it_had(world: SinkWorld) -> None:
    """Rows of then may have been deleted since, and no record there deletes them."""
    assert written(world, 1, "a").reason_against(SinkTopic("a", ("g",), 1), entry(2)) == NEVER
    feeds = written(world, 2, "b")
    assert feeds.reason_against(SinkTopic("a", ("g",), 1), entry(2)) == "it is written to topic b"
    for topic in ("a", "b"):
        assert feeds.reason_against(SinkTopic(topic, ("g",), 1), entry(3)) == NEVER
    feeds = written(world, 3, "c")
    assert feeds.feed(entry(3), "c") == StoredFeed(
        source=SOURCE, shape_id="s", incarnation=3, topic="c", topic_id="c", old_topics=("a", "b"), counted={"g": {}}
    )


def test_each_writer_continues_from_its_own_positions(world: SinkWorld) -> None:
    """Two writers of one prefix share the topic of the state: one began where the other was, and found gaps."""
    stored = [StoredPositions({0: 7}, "kafka"), StoredPositions({0: 900}, "other")]
    world.kept[STATE] = [each.to_json() for each in stored]
    assert len({each.key for each in stored}) == 2
    found = [StoredFeeds(replace(world.config, writer=writer)).positions for writer in ("kafka", "other", "third")]
    assert found == [{0: 7}, {0: 900}, {}]


def test_a_shape_never_begins_in_a_topic_of_another(world: SinkWorld) -> None:
    """Also one of the same source that was taken out of the configuration: nothing deletes its rows in the store."""
    feed = ShapeFeed(
        StoredFeed(source=SOURCE, shape_id="other", incarnation=2, topic="b", old_topics=("a",)),
        ("g",),
        TopicFacts("b", 1, {}, "b"),
        waits_for_snapshot=False,
    )
    world.kept[STATE] = [feed.stored().to_json()]
    topics = {"s": SinkTopic("a", ("g",), 1), "t": SinkTopic("b", ("g",), 1), "u": SinkTopic("c", ("g",), 1)}
    feeds = StoredFeeds(replace(world.config, topics=topics))
    refused = f"its topic has rows of shape 'other' of source {SOURCE}: give it another one"
    assert [feeds.reason_against(topic, entry(1)) for topic in topics.values()] == [refused, refused, None]
