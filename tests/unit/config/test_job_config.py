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

CONF = Path(__file__).parents[3] / "conf"
FILE = ConfigFile("job.yaml", load_config)

COMPLETE = """\
source:  {format: files, fragments: data/fragments, flushes: data/flushes, max_files_per_trigger: 7}
state:   {checkpoint: data/checkpoint, shape_groups: 0, max_pending_transactions: 10, shuffle_partitions: 2}
sink:    {acks: data/acks, dead_letters: data/dead_letters, storage_options: {AWS_REGION: eu, KEY: "${KEY}"}}
stall:   {grace: "5 minutes"}
trigger: "1 second"
"""

MINIMAL = """\
source:  {format: files, fragments: f, flushes: g}
state:   {checkpoint: c}
sink:    {acks: a, dead_letters: d}
trigger: available_now
"""


def test_every_key_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key has its default value here."""
    monkeypatch.setenv("KEY", "hunter2")
    config = FILE.load(tmp_path, COMPLETE)

    assert config.transport == FilesTransport({"fragments": "data/fragments", "flushes": "data/flushes"}, 7)
    assert config.transport.format == "files"
    assert config.state == StateConfig("data/checkpoint", 0, 10, 2)
    assert (config.sink.acks, config.sink.dead_letters) == ("data/acks", "data/dead_letters")
    assert dict(config.sink.storage_options) == {"AWS_REGION": "eu", "KEY": "hunter2"}
    assert config.stall == StallConfig(300_000)
    assert config.trigger_ms == 1_000


def test_omitted_keys_have_their_defaults(tmp_path: Path) -> None:
    """The minimal file states where things are, and when the job runs."""
    assert FILE.load(tmp_path, MINIMAL) == JobConfig(
        transport=FilesTransport({"fragments": "f", "flushes": "g"}, 100),
        state=StateConfig("c", 16, 4096, 4),
        sink=SinkConfig("a", "d"),
        stall=StallConfig(60_000),
        trigger_ms=None,
    )


def test_storage_options_never_show_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration ends up in logs and tracebacks; its passwords must not."""
    monkeypatch.setenv("KEY", "hunter2")
    config = FILE.load(tmp_path, COMPLETE)

    assert "storage_options=SecretOptions(AWS_REGION=…, KEY=…)" in repr(config)
    assert "hunter2" not in repr(config) + str(config.sink.storage_options)


@pytest.mark.parametrize("name", ["replay.yaml", "track_flushes.yaml"])
def test_the_shipped_files_are_valid(name: str) -> None:
    """`make run` uses the one that reads one file at a time."""
    config = load_config(CONF / name)
    assert isinstance(config.transport, FilesTransport)
    assert (config.transport.max_files_per_trigger, config.trigger_ms) == (
        (1, 2_000) if name == "replay.yaml" else (100, 1_000)
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("stall: ", "stal: ", "line 4: stal is not a known key; did you mean stall or state?"),
        (
            "max_files_per_trigger",
            "max_files",
            "line 1: source.max_files is not a known key; did you mean max_files_per_trigger?",
        ),
        ("shape_groups: 0", "shape_groups: -1", "line 2: state.shape_groups is '-1', not a number of at least 0"),
        ("shape_groups: 0", "shape_groups: many", "line 2: state.shape_groups is 'many', not a whole number"),
        (
            "_transactions: 10",
            "_transactions: 0",
            "line 2: state.max_pending_transactions is '0', not a number of at least 1",
        ),
        ("partitions: 2", "partitions: 0", "line 2: state.shuffle_partitions is '0', not a number of at least 1"),
        ("trigger: 7", "trigger: 0", "line 1: source.max_files_per_trigger is '0', not a number of at least 1"),
        ("checkpoint: data/checkpoint, ", "", "line 2: state.checkpoint is missing"),
        ("acks: data/acks", "acks: ''", "line 3: sink.acks is empty"),
        (
            "AWS_REGION: eu",
            "AWS_REGION: [eu]",
            "line 3: sink.storage_options.AWS_REGION is a list, not a single value",
        ),
        (
            "${KEY}",
            "${NOT_SET_HERE}",
            "line 3: sink.storage_options.KEY names the environment variable NOT_SET_HERE, which is not set",
        ),
        (
            "format: files",
            "format: pulsar",
            "line 1: source.format is 'pulsar', not files or kafka",
        ),
        ("format: files, ", "", "line 1: source.format is missing"),
        (
            "data/acks",
            "data/checkpoint/",
            "line 3: sink.acks is the same as state.checkpoint; each needs its own",
        ),
        ('"1 second"', "1", "line 5: trigger is a number; put it in quotes if a string is meant"),
        ('"5 minutes"', '"5"', "line 4: stall.grace is '5', not " + DURATION),
        ('"1 second"', "once", "line 5: trigger is 'once', not available_now, or an interval: " + DURATION),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    """The message has the file, the line, the key, and what is expected."""
    monkeypatch.setenv("KEY", "hunter2")
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    assert old in COMPLETE
    assert FILE.refusal(tmp_path, COMPLETE.replace(old, new)) == f"job.yaml {message}"


@pytest.mark.parametrize("section", ["source", "state", "sink", "trigger"])
def test_a_missing_section_is_refused(tmp_path: Path, section: str) -> None:
    """Only `stall` may be left out: its defaults make sense everywhere."""
    text = "".join(line for line in MINIMAL.splitlines(keepends=True) if not line.startswith(section))
    assert FILE.refusal(tmp_path, text) == f"job.yaml line 1: {section} is missing"


def test_a_secret_in_the_wrong_place_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable; neither it nor its causes show the value."""
    monkeypatch.setenv("KEY", "hunter2")
    with pytest.raises(ConfigError) as caught:
        FILE.load(tmp_path, MINIMAL.replace("available_now", "${KEY}"))
    assert "line 4: trigger is '${KEY}', not available_now" in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


KAFKA = """\
source:  {format: kafka, bootstrap_servers: "${SERVERS}", fragments: f, flushes: acks, retention: "2 days",
          retry_timeout: "1 minute", options: {maxOffsetsPerTrigger: 500000, kafka.sasl.jaas.config: "${KEY}"}}
state:   {checkpoint: c}
sink:    {acks: acks, dead_letters: d}
trigger: available_now
"""


def test_kafka_options_are_passed_on_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may have the same name as a table; no option's value is ever shown."""
    monkeypatch.setenv("SERVERS", "one:9092,two:9092")
    monkeypatch.setenv("KEY", "hunter2")
    source = FILE.load(tmp_path, KAFKA).transport
    assert isinstance(source, KafkaTransport)
    assert (source.bootstrap_servers, *source.streams.values()) == ("one:9092,two:9092", "f", "acks")
    assert dict(source.options) == {"maxOffsetsPerTrigger": "500000", "kafka.sasl.jaas.config": "hunter2"}
    assert (source.retention_ms, source.retry_timeout_ms) == (172_800_000, 60_000)
    assert "hunter2" not in repr(source)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("fragments: f", "fragments: 'f,g'", "source.fragments is 'f,g', not a topic name: letters, digits, "),
        ("flushes: acks", "flushes: f", "source.flushes is the same as source.fragments; each needs its own"),
        ("fragments: f, ", "", "source.fragments is missing"),
        ('"2 days"', '"2 weeks"', "source.retention is '2 weeks', not " + DURATION),
        ("flushes: acks", "flushes: g, max_files_per_trigger: 1", "source.max_files_per_trigger is not a known key; "),
        (
            "maxOffsets",
            "failOnDataLoss: false, maxOffsets",
            "source.options.failOnDataLoss cannot be set: a lost record ",
        ),
        (
            "maxOffsets",
            "FAILONDATALOSS: false, maxOffsets",
            "source.options.FAILONDATALOSS cannot be set: a lost record ",
        ),
        ("maxOffsets", "startingOffsets: latest, maxOffsets", "source.options.startingOffsets cannot be set: the "),
        (
            "maxOffsets",
            "kafka.isolation.level: read_uncommitted, maxOffsets",
            "source.options.kafka.isolation.level cannot be set: the job sets read_committed, ",
        ),
        ("maxOffsets", "kafka.bootstrap.servers: x, maxOffsets", "source.options.kafka.bootstrap.servers cannot be "),
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
