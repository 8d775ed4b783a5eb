"""The configuration of snapshots for writers of other storages: ``kafka`` instead of ``sink``."""

from pathlib import Path
from typing import Final

import pytest

from flushtracker.errors import ConfigError
from flushtracker.shape_log.snapshot.publish_config import load_publish_config

POSTGRES: Final = "postgres: {connection: {}, publication: p}\n"
TOPICS: Final = "topics: {fragments: f, flushes: l, shapes: s, shape_changes: c, snapshots: n, snapshots_taken: t}"
MINIMAL: Final = f"{POSTGRES}kafka: {{bootstrap_servers: 'k:9092', {TOPICS}}}\n"


def test_kafka_is_read_with_the_topics_of_snapshots(tmp_path: Path) -> None:
    """Everything else is as for the shape log."""
    (file := tmp_path / "snapshot.yaml").write_text(f'{MINIMAL}trigger: "5 seconds"\n')
    config = load_publish_config(file)
    assert config is not None
    assert (config.kafka.topics.snapshots, config.kafka.topics.snapshots_taken) == ("n", "t")
    assert (config.postgres.publication, config.trigger_ms) == ("p", 5_000)


def test_a_configuration_with_a_sink_is_another(tmp_path: Path) -> None:
    """It is for the shape log."""
    (file := tmp_path / "snapshot.yaml").write_text(f"{POSTGRES}sink: {{log: l, shapes: s}}\n")
    assert load_publish_config(file) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{MINIMAL}sink: {{log: l}}\n", "sink is not a known key"),
        (MINIMAL.replace(", snapshots: n, snapshots_taken: t", ""), "kafka.topics.snapshots is missing"),
        (MINIMAL.replace(", snapshots_taken: t", ""), "kafka.topics.snapshots_taken is missing"),
    ],
)
def test_wrong_keys_are_named(text: str, message: str, tmp_path: Path) -> None:
    """A file with both would leave open where the rows go."""
    (file := tmp_path / "snapshot.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_publish_config(file)
