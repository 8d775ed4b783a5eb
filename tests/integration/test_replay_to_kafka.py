"""``flushtracker replay --kafka`` on a real broker: the same streams as in files, with each record under its key."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from flushtracker.cli import main
from flushtracker.event_files import read_lines, stream_files
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin
from tests.support.brokers import Broker
from tests.support.kafka_streams import config_file, created_streams, records, streams_config, topic_names, unreachable
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
ARGUMENTS = ("--recording", str(ROOT / "tests" / "recording"), "--shapes", str(ROOT / "conf" / "shapes.yaml"))
SOURCE = "recording/1/shapes"
DEADLINE_S = 60


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


def test_missing_topics_are_reported_and_not_created(
    broker: Broker, topic_name: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All topics that a replay needs are reported; it sends no notifications."""
    config = streams_config(broker.bootstrap_servers, topic_name)
    assert replay(config, tmp_path) == 2
    topics = config.topics
    assert capsys.readouterr().err == (
        f"flushtracker replay: there is no topic {topics.fragments} for fragments; "
        f"there is no topic {topics.shape_changes} for shape_changes; "
        f"there is no topic {topics.shapes} for shapes. `flushtracker topics` checks and creates topics\n"
    )
    assert not set(topics.by_role().values()) & topic_names(broker.bootstrap_servers)


def test_brokers_that_do_not_answer_are_named(
    config: KafkaConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 6."""
    assert replay(unreachable(config, retry_timeout_ms=1_000), tmp_path) == 6
    assert capsys.readouterr().err.startswith("flushtracker replay: Kafka at 127.0.0.1:9 does not answer within 1 s: ")


def test_ctrl_c_ends_a_replay_between_two_records(
    config: KafkaConfig, tmp_path: Path, files: dict[str, list[str]]
) -> None:
    """It prints one line; the topic holds the beginning of the stream, sent at no more than the requested rate."""
    command = [sys.executable, "-m", "flushtracker", "replay", *ARGUMENTS]
    command += ["--kafka", str(config_file(config, tmp_path / "kafka.yaml")), "--rate", "40"]
    admin = TopicAdmin(config)
    started = time.monotonic()

    def has_begun() -> bool:
        assert program.poll() is None
        return admin.record_count("fragments") >= 30

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as program:
        try:
            wait_until(has_begun, "30 fragments", DEADLINE_S)
            os.killpg(program.pid, signal.SIGINT)
            errors = program.communicate(timeout=DEADLINE_S)[1]
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
    assert (program.returncode, errors) == (130, "flushtracker replay: interrupted\n")
    (found,) = records(config.bootstrap_servers, config.topics.fragments).values()
    assert [value for _, value in found] == files["fragments"][: len(found)]
    # A tick of several fragments may exceed the rate.
    assert 30 <= len(found) < 40 * (time.monotonic() - started) + 130


def test_the_streams_go_to_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Both, or neither, is an error."""
    for options, fact in (
        ([], "one of the arguments --out --kafka is required"),
        (["--out", "x", "--kafka", "y"], "argument --kafka: not allowed with argument --out"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["replay", *ARGUMENTS, *options])
        assert end.value.code == 2
        assert capsys.readouterr().err.endswith(f"error: {fact}\n")
