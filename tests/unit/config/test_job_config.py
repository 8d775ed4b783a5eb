"""The job's configuration: how a file is read, and the message for each wrong one."""

from pathlib import Path

import pytest

from flushtracker.config.job_config import (
    JobConfig,
    SinkConfig,
    StallConfig,
    StateConfig,
    load_config,
)
from flushtracker.config.transport import FilesTransport, KafkaTransport
from flushtracker.errors import ConfigError
from tests.support.config_files import DURATION, ConfigFile

FILE = ConfigFile("job.yaml", load_config)

COMPLETE = """\
files: {path: data/in, max_files_per_trigger: 7}
storage: {path: data, options: {AWS_REGION: eu, KEY: "${KEY}"}}
track:
  checkpoint: data/checkpoint
  shape_groups: 0
  max_pending_transactions: 10
  shuffle_partitions: 2
  stall_grace: "5 minutes"
  trigger: "2 seconds"
status: false
"""

MINIMAL = "files: f\nstorage: d\nstatus: false\n"


def test_every_key_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key has its default value here."""
    monkeypatch.setenv("KEY", "hunter2")
    config = FILE.load(tmp_path, COMPLETE)

    assert config.transport == FilesTransport({"fragments": "data/in/fragments", "flushes": "data/in/flushes"}, 7)
    assert config.transport.format == "files"
    assert config.state == StateConfig("data/checkpoint", 0, 10, 2)
    assert (config.sink.acks, config.sink.dead_letters) == ("data/acks", "data/dead_letters")
    assert dict(config.sink.storage_options) == {"AWS_REGION": "eu", "KEY": "hunter2"}
    assert config.stall == StallConfig(300_000)
    assert config.trigger_ms == 2_000


def test_omitted_keys_have_their_defaults(tmp_path: Path) -> None:
    """The minimal file states where things are."""
    assert FILE.load(tmp_path, MINIMAL) == JobConfig(
        transport=FilesTransport({"fragments": "f/fragments", "flushes": "f/flushes"}),
        state=StateConfig("d/checkpoints/track"),
        sink=SinkConfig("d/acks", "d/dead_letters"),
        stall=StallConfig(),
        trigger_ms=1_000,
    )


def test_storage_options_never_show_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration ends up in logs and tracebacks; its passwords must not."""
    monkeypatch.setenv("KEY", "hunter2")
    config = FILE.load(tmp_path, COMPLETE)

    assert "storage_options=SecretOptions(AWS_REGION=…, KEY=…)" in repr(config)
    assert "hunter2" not in repr(config) + str(config.sink.storage_options)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("track:", "trac:", "line 3: trac is not a known key; did you mean track?"),
        ("max_files_per_trigger", "max_files", "line 1: files.max_files is not a known key; did you mean max_f"),
        ("shape_groups: 0", "shape_groups: -1", "line 5: track.shape_groups is '-1', not a number of at least 0"),
        ("shape_groups: 0", "shape_groups: many", "line 5: track.shape_groups is 'many', not a whole number"),
        ("ions: 10", "ions: 0", "line 6: track.max_pending_transactions is '0', not a number of at least 1"),
        ("partitions: 2", "partitions: 0", "line 7: track.shuffle_partitions is '0', not a number of at least 1"),
        ("trigger: 7", "trigger: 0", "line 1: files.max_files_per_trigger is '0', not a number of at least 1"),
        ("path: data,", "path: '',", "line 2: storage.path is empty"),
        ("path: data, ", "", "line 2: storage.path is missing"),
        ("path: data/in, ", "", "line 1: files.path is missing"),
        ("AWS_REGION: eu", "AWS_REGION: [eu]", "line 2: storage.options.AWS_REGION is a list, not a single value"),
        (
            "${KEY}",
            "${NOT_SET_HERE}",
            "line 2: storage.options.KEY names the environment variable NOT_SET_HERE, which is not set",
        ),
        ("data/checkpoint", "data/acks/", "line 4: track.checkpoint is the same as acks; each needs its own"),
        ('"2 seconds"', "1", "line 9: track.trigger is a number; put it in quotes if a string is meant"),
        ('"5 minutes"', '"5"', "line 8: track.stall_grace is '5', not " + DURATION),
        ('"2 seconds"', "once", "line 9: track.trigger is 'once', not available_now, or an interval: " + DURATION),
        ("status: false", "kafka: h:1", "line 1: files is used instead of kafka, which is on line 10"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    """The message has the file, the line, the key, and what is expected."""
    monkeypatch.setenv("KEY", "hunter2")
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    assert old in COMPLETE
    assert FILE.refusal(tmp_path, COMPLETE.replace(old, new)).startswith(f"job.yaml {message}")


def test_streams_are_on_kafka_or_in_files(tmp_path: Path) -> None:
    assert FILE.refusal(tmp_path, "storage: d\n") == "job.yaml line 1: kafka is missing"


def test_a_secret_in_the_wrong_place_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable; neither it nor its causes show the value."""
    monkeypatch.setenv("KEY", "hunter2")
    with pytest.raises(ConfigError) as caught:
        FILE.load(tmp_path, MINIMAL + "track: {trigger: '${KEY}'}\n")
    assert "line 4: track.trigger is '${KEY}', not available_now" in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


KAFKA = """\
kafka: {bootstrap_servers: "${SERVERS}", topic_prefix: p, retention: "2 days", retry_timeout: "1 minute"}
storage: d
track: {options: {maxOffsetsPerTrigger: 500000, kafka.sasl.jaas.config: "${KEY}"}}
"""


def test_kafka_options_are_passed_on_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No option's value is ever shown."""
    monkeypatch.setenv("SERVERS", "one:9092,two:9092")
    monkeypatch.setenv("KEY", "hunter2")
    source = FILE.load(tmp_path, KAFKA).transport
    assert isinstance(source, KafkaTransport)
    assert (source.bootstrap_servers, *source.streams.values()) == ("one:9092,two:9092", "p.fragments", "p.flushes")
    assert dict(source.options) == {"maxOffsetsPerTrigger": "500000", "kafka.sasl.jaas.config": "hunter2"}
    assert (source.retention_ms, source.retry_timeout_ms) == (172_800_000, 60_000)
    assert "hunter2" not in repr(source)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("prefix: p", "prefix: 'f,g'", "kafka.topic_prefix is 'f,g', not a topic name: letters, digits, "),
        ('"2 days"', '"2 weeks"', "kafka.retention is '2 weeks', not " + DURATION),
        (
            "maxOffsets",
            "failOnDataLoss: false, maxOffsets",
            "track.options.failOnDataLoss cannot be set: a lost record ",
        ),
        (
            "maxOffsets",
            "FAILONDATALOSS: false, maxOffsets",
            "track.options.FAILONDATALOSS cannot be set: a lost record ",
        ),
        ("maxOffsets", "startingOffsets: latest, maxOffsets", "track.options.startingOffsets cannot be set: the "),
        (
            "maxOffsets",
            "kafka.isolation.level: read_uncommitted, maxOffsets",
            "track.options.kafka.isolation.level cannot be set: the job sets read_committed, ",
        ),
        ("maxOffsets", "kafka.bootstrap.servers: x, maxOffsets", "track.options.kafka.bootstrap.servers cannot be "),
    ],
)
def test_settings_that_could_lose_records_or_conflict_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    """Option names match in any case, as in Spark."""
    monkeypatch.setenv("SERVERS", "one:9092")
    monkeypatch.setenv("KEY", "hunter2")
    assert old in KAFKA
    assert message in FILE.refusal(tmp_path, KAFKA.replace(old, new))
