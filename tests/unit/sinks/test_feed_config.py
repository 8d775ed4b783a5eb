"""The section ``sink`` of the configuration."""

from pathlib import Path
from typing import Any

import pytest

from flushtracker.errors import ConfigError
from flushtracker.sinks.job.feed_config import SinkTopic, load_feed_config
from tests.support.config_file import write_config

TOPIC = {"topic": "app.public.orders", "groups": ["clickhouse", "search"]}


def file(folder: Path, **sink: Any) -> Path:
    kafka = {"bootstrap_servers": "broker:9092", "topic_prefix": "app"}
    return write_config(folder / "flushtracker.yaml", {"kafka": kafka, **({"sink": sink} if sink else {})})


def test_defaults_follow_from_the_file(tmp_path: Path) -> None:
    config = load_feed_config(file(tmp_path, topics={"orders": TOPIC}))
    assert config.topics == {"orders": SinkTopic("app.public.orders", ("clickhouse", "search"), 1)}
    assert (config.writer, config.name, config.database, config.source) == ("kafka", "flushtracker", "", None)
    assert (config.poll_ms, config.state_topic) == (500, "app.sinks")
    assert config.status is not None
    assert config.status.listen_port == 9469


def test_everything_can_be_set(tmp_path: Path) -> None:
    keys = {"writer": "own", "name": "n", "database": "d", "source": "7/1/s", "poll": "2 seconds"}
    config = load_feed_config(file(tmp_path, topics={"orders": {**TOPIC, "partitions": 6, "schemas": True}}, **keys))
    assert config.topics["orders"] == SinkTopic("app.public.orders", ("clickhouse", "search"), 6, has_schemas=True)
    assert (config.writer, config.name, config.database, config.source, config.poll_ms) == (
        "own",
        "n",
        "d",
        "7/1/s",
        2000,
    )


@pytest.mark.parametrize(
    ("sink", "reason"),
    [
        ({}, "sink is missing"),
        ({"name": "n"}, "topics is missing"),
        ({"topics": {"a": {"topic": "t"}}}, "groups is missing: the consumer groups whose commits say what is durable"),
        ({"topics": {"a": {**TOPIC, "groups": []}}}, "groups"),
        ({"topics": {"a": {"groups": ["g"]}}}, "topic is missing"),
        ({"topics": {"a": {**TOPIC, "partitions": 0}}}, "partitions"),
        ({"topics": {"a": {**TOPIC, "format": "avro"}}}, "format"),
        ({"topics": {"a": {**TOPIC, "schemas": 1}}}, "schemas"),
        ({"topics": {"a": {**TOPIC, "topic": "app.sinks"}}}, "topic is app.sinks, which has a stream of flushtracker"),
        ({"topics": {"a": {**TOPIC, "topic": "app.shape_changes"}}}, "topic is app.shape_changes, which has a stream"),
        ({"topics": {"a": TOPIC, "b": TOPIC}}, "has the topic app.public.orders, as another shape: each needs its own"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, sink: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as found:
        load_feed_config(file(tmp_path, **sink))
    assert reason in str(found.value)
    assert "flushtracker.yaml" in str(found.value)
