"""The configuration of snapshots for writers of other storages: ``snapshot.into: kafka``."""

from pathlib import Path
from typing import Final

from flushtracker.shape_log.snapshot.publish_config import load_publish_config

MINIMAL: Final = "postgres: {host: db}\nkafka: 'k:9092'\nstorage: data\n"


def test_kafka_is_read_with_the_topics_of_snapshots(tmp_path: Path) -> None:
    """Everything else is as for the shape log."""
    (file := tmp_path / "snapshot.yaml").write_text(f'{MINIMAL}snapshot: {{into: kafka, trigger: "5 seconds"}}\n')
    config = load_publish_config(file)
    assert config is not None
    topics = config.kafka.topics
    assert (topics.snapshots, topics.snapshots_taken) == ("flushtracker.snapshots", "flushtracker.snapshots_taken")
    assert (config.postgres.publication, config.trigger_ms) == ("flushtracker", 5_000)


def test_snapshots_are_for_the_shape_log_by_default(tmp_path: Path) -> None:
    (file := tmp_path / "snapshot.yaml").write_text(MINIMAL)
    assert load_publish_config(file) is None
