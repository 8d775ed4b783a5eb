"""``flushtracker replay --kafka`` on a real broker: the same streams as in files, with each record under its key."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from flushtracker.cli import main
from flushtracker.event_files import read_lines, stream_files
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin
from tests.support.brokers import Broker
from tests.support.kafka_streams import config_file, created_streams, records

ROOT = Path(__file__).parents[2]
ARGUMENTS = ("--recording", str(ROOT / "tests" / "recording"), "--shapes", str(ROOT / "conf" / "shapes.yaml"))
SOURCE = "recording/1/shapes"


@pytest.fixture
def config(broker: Broker, topic_name: Callable[[str], str]) -> KafkaConfig:
    """Four streams with three partitions each."""
    return created_streams(broker.bootstrap_servers, topic_name, partitions=3)


def replay(config: KafkaConfig, folder: Path) -> int:
    return main(["replay", *ARGUMENTS, "--kafka", str(config_file(config, folder / "kafka.yaml"))])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Stream → its lines, as the same replay writes them to files."""
    out = tmp_path_factory.mktemp("files")
    assert main(["replay", *ARGUMENTS, "--out", str(out)]) == 0
    return {
        stream: [line for file in stream_files(out / stream) for line in read_lines(file)]
        for stream in ("fragments", "shapes", "shape_changes")
    }


def by_key(lines: list[str], *names: str) -> dict[str, list[str]]:
    """The lines under their expected keys: the plain value of one field, or a JSON array of several."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        fields = [json.loads(line)[name] for name in names]
        found[fields[0] if len(names) == 1 else json.dumps(fields, separators=(",", ":"))].append(line)
    return found


def test_the_topics_hold_what_the_files_hold(
    config: KafkaConfig, tmp_path: Path, files: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each key has the same events in the same order, all in one partition."""
    assert replay(config, tmp_path) == 0
    line = capsys.readouterr().err.splitlines()[-1]
    count = sum(map(len, files.values()))
    assert f" 14 of 15 shapes took part; {count:,} records at {config.bootstrap_servers}, " in line

    expected = {
        config.topics.fragments: by_key(files["fragments"], "source"),
        config.topics.shapes: by_key(files["shapes"], "source", "shape_id"),
        config.topics.shape_changes: by_key(files["shape_changes"], "source", "shape_id"),
    }
    assert list(expected[config.topics.fragments]) == [SOURCE]
    for topic, keys in expected.items():
        found: dict[str, list[str]] = defaultdict(list)
        key_partitions: dict[str, set[int]] = defaultdict(set)
        for partition, pairs in records(config.bootstrap_servers, topic).items():
            for key, value in pairs:
                found[key].append(value)
                key_partitions[key].add(partition)
        assert found == keys
        assert {len(partitions) for partitions in key_partitions.values()} == {1}


def test_a_topic_that_has_fragments_is_not_written_to(
    config: KafkaConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second chain would go back to the beginning; nothing is added."""
    assert replay(config, tmp_path) == 0
    capsys.readouterr()
    admin = TopicAdmin(config)
    counts = [admin.record_count(role) for role in ("fragments", "shapes", "shape_changes")]
    assert replay(config, tmp_path) == 2
    assert capsys.readouterr().err == (
        f"flushtracker replay: topic {config.topics.fragments} already has records (410); remove the topics together "
        "with the checkpoint and tables made from them, or name others\n"
    )
    assert [admin.record_count(role) for role in ("fragments", "shapes", "shape_changes")] == counts
