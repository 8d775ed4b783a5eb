"""The writers' configuration: how a file is read, and the message for each wrong one."""

from dataclasses import replace
from pathlib import Path

import pytest

from flushtracker.config.job_config import StateConfig, load_config
from flushtracker.config.transport import FilesTransport, KafkaTransport
from flushtracker.config.write_config import FlushesConfig, LogConfig, WriteConfig, load_write_config
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.trials.demo.services import _CONF as DEMO_CONF
from tests.support.config_files import DURATION, ConfigFile

CONF = Path(__file__).parents[3] / "conf"
FILE = ConfigFile("write.yaml", load_write_config)

COMPLETE = """\
source:  {format: kafka, bootstrap_servers: "${SERVERS}", shape_changes: c, shapes: s, retention: "2 days",
          retry_timeout: "1 minute", options: {minPartitions: 4, kafka.sasl.jaas.config: "${KEY}"}}
flushes: {topic: f, options: {sasl.password: "${KEY}"}}
state:   {checkpoint: data/checkpoint, shape_groups: 8, shuffle_partitions: 2}
sink:    {log: data/log, shapes: data/log_shapes, delete_after: "30 days", storage_options: {KEY: "${KEY}"}}
write_unit: txn
flush: hold
trigger: "1 second"
"""

MINIMAL = """\
source:  {format: files, shape_changes: c, shapes: s}
flushes: {directory: f}
state:   {checkpoint: p}
sink:    {log: l, shapes: r}
trigger: available_now
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the files refer to."""
    monkeypatch.setenv("SERVERS", "one:9092")
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "one:9092")
    monkeypatch.setenv("PGHOST", "postgres")
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.setenv("KEY", "hunter2")


def test_every_key_is_read(tmp_path: Path) -> None:
    """No key has its default value here, and no option's value is shown."""
    config = FILE.load(tmp_path, COMPLETE)
    transport = config.transport
    assert isinstance(transport, KafkaTransport)
    assert (transport.bootstrap_servers, transport.streams) == ("one:9092", {"shape_changes": "c", "shapes": "s"})
    assert dict(transport.options) == {"minPartitions": "4", "kafka.sasl.jaas.config": "hunter2"}
    assert (transport.retention_ms, transport.retry_timeout_ms) == (172_800_000, 60_000)
    assert (config.flushes.name, dict(config.flushes.options)) == ("f", {"sasl.password": "hunter2"})
    assert config.state == StateConfig("data/checkpoint", shape_groups=8, shuffle_partitions=2)
    assert replace(config.sink, storage_options=LogConfig("", "").storage_options) == LogConfig(
        "data/log", "data/log_shapes", delete_after_ms=30 * 86_400_000
    )
    assert dict(config.sink.storage_options) == {"KEY": "hunter2"}
    assert (config.write_unit, config.flush, config.trigger_ms) == ("txn", "hold", 1_000)
    assert "hunter2" not in repr(config)


def test_cuts_need_kafka_and_batches_that_append_all(tmp_path: Path) -> None:
    """Only Kafka says where the registry of shapes ends, and what a shape holds back is not in the log."""
    assert "acks is only used with flush: batch" in FILE.refusal(tmp_path, f"{COMPLETE}\nacks: data/acks\n")
    assert FILE.load(tmp_path, f"{COMPLETE.replace('flush: hold', '')}\nacks: data/acks\n").acks == "data/acks"
    assert "acks is only used with source.format kafka" in FILE.refusal(tmp_path, f"{MINIMAL}\nacks: data/acks\n")


def test_omitted_keys_have_their_defaults(tmp_path: Path) -> None:
    """The minimal file states where things are, and when the job runs."""
    assert FILE.load(tmp_path, MINIMAL) == WriteConfig(
        transport=FilesTransport({"shape_changes": "c", "shapes": "s"}, 100),
        flushes=FlushesConfig("f"),
        state=StateConfig("p", shape_groups=16, shuffle_partitions=4),
        sink=LogConfig("l", "r", delete_after_ms=None),
        write_unit="txn_fragment",
        flush="batch",
        trigger_ms=None,
    )


@pytest.mark.parametrize(
    ("path", "trigger_ms"),
    [
        (CONF / "write_replay.yaml", 2_000),
        (CONF / "write_shapes.yaml", 1_000),
        (DEMO_CONF / "flushtracker.yaml", 1_000),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_shipped_examples_can_be_used(monkeypatch: pytest.MonkeyPatch, path: Path, trigger_ms: int) -> None:
    """Each runs until it is stopped."""
    monkeypatch.setenv("FLUSHTRACKER_DEMO", "data/demo")
    monkeypatch.setenv("FLUSHTRACKER_DEMO_KAFKA", "one:9092")
    for number, name in enumerate(("POSTGRES", "STATUS", "HTTP")):
        monkeypatch.setenv(f"FLUSHTRACKER_DEMO_{name}_PORT", str(5432 + number))
    config = load_write_config(path)
    assert config.trigger_ms == trigger_ms
    assert isinstance(config.transport, FilesTransport) == (path.name == "write_replay.yaml")


def test_make_run_has_one_slow_writer() -> None:
    """The plot shows how the ack waits for it: writers and tracker read at one pace, and it flushes far less often."""
    writers, tracker = load_write_config(CONF / "write_replay.yaml"), load_config(CONF / "replay.yaml")
    assert (writers.flush, writers.trigger_ms) == ("hold", tracker.trigger_ms)
    intervals = {shape.id: shape.flush.interval_ms or 0 for shape in load_shapes(CONF / "shapes.yaml")}
    slow = intervals.pop("events")
    assert slow >= 5 * max(*intervals.values(), writers.trigger_ms or 0)


def test_permanent_example_shows_the_defaults(tmp_path: Path) -> None:
    """Whoever takes a line out gets what the example has, except for what it leaves commented out."""
    example = load_write_config(CONF / "write_shapes.yaml")
    assert isinstance(example.transport, KafkaTransport)
    required = KafkaTransport(example.transport.bootstrap_servers, example.transport.streams)
    assert example.transport == required
    minimal = FILE.load(tmp_path, MINIMAL)
    assert (example.write_unit, example.flush) == (minimal.write_unit, minimal.flush)
    assert replace(example.state, checkpoint="p") == minimal.state
    assert example.sink.delete_after_ms is None


def test_permanent_example_uses_the_topics_of_the_others() -> None:
    """Capture, the tracking job and the writers meet in them."""
    config = load_write_config(CONF / "write_shapes.yaml")
    kafka = (CONF / "kafka.yaml").read_text()
    for role, topic in {**config.transport.streams, "flushes": config.flushes.name}.items():
        assert f"  {role}: {topic} " in kafka


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format: kafka", "format: pulsar", "line 1: source.format is 'pulsar', not files or kafka"),
        ("write_unit: txn", "write_units: txn", "line 6: write_units is not a known key; did you mean write_unit?"),
        ("shapes: s", "fragments: s", "line 1: source.fragments is not a known key; known keys: format, "),
        ("shapes: s", "shapes: c", "line 1: source.shapes is the same as source.shape_changes; each needs its own"),
        ("shapes: s", "shapes: 's,t'", "line 1: source.shapes is 's,t', not a topic name: letters, digits, "),
        ("topic: f", "topic: 'f g'", "line 3: flushes.topic is 'f g', not a topic name: letters, digits, "),
        ("topic: f", "topic: s", "line 3: flushes.topic is the same as source.shapes; each needs its own"),
        ("topic: f, ", "", "line 3: flushes.topic is missing"),
        ("topic: f", "directory: f", "line 3: flushes.directory is not a known key; "),
        ("minPartitions", "kafka.isolation.level", "line 2: source.options.kafka.isolation.level cannot be set: the "),
        ("minPartitions", "startingOffsets", "line 2: source.options.startingOffsets cannot be set: "),
        ("shape_groups: 8", "shape_groups: 0", "line 4: state.shape_groups is '0', not a number of at least 1"),
        (
            "shape_groups: 8",
            "max_pending_transactions: 8",
            "line 4: state.max_pending_transactions is not a known key; ",
        ),
        ("partitions: 2", "partitions: 0", "line 4: state.shuffle_partitions is '0', not a number of at least 1"),
        ("log: data/log, ", "", "line 5: sink.log is missing"),
        ("data/log_shapes", "data/log", "line 5: sink.shapes is the same as sink.log; each needs its own"),
        (
            "data/log_shapes",
            "data/log/shapes",
            "line 5: sink.shapes is inside sink.log; each needs a folder of its own",
        ),
        ("log: data/log", "log: data", "line 5: sink.log contains state.checkpoint; each needs a folder of its own"),
        ('"30 days"', '"a month"', "line 5: sink.delete_after is 'a month', not " + DURATION),
        ("write_unit: txn", "write_unit: row", "line 6: write_unit is 'row', not txn or txn_fragment"),
        ("flush: hold", "flush: each", "line 7: flush is 'each', not hold or batch"),
        ('"1 second"', "once", "line 8: trigger is 'once', not available_now, or an interval: " + DURATION),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    """The message has the file, the line, the key, and what is expected."""
    assert old in COMPLETE
    assert FILE.refusal(tmp_path, COMPLETE.replace(old, new)).startswith(f"write.yaml {message}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shapes: s", "shapes: c", "line 1: source.shapes is the same as source.shape_changes; each needs its own"),
        ("shapes: s", "shapes: c/s", "line 1: source.shapes is inside source.shape_changes; each needs a folder "),
        ("directory: f", "directory: c/f", "line 2: flushes.directory is inside source.shape_changes; each needs "),
        ("checkpoint: p", "checkpoint: f/p", "line 3: state.checkpoint is inside flushes.directory; each needs "),
        ("log: l", "log: p/l", "line 4: sink.log is inside state.checkpoint; each needs a folder of its own"),
        ("directory: f", "topic: f", "line 2: flushes.topic is not a known key; known keys: directory"),
    ],
)
def test_files_need_folders_of_their_own(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Upkeep deletes what is in the folder of a table and not part of it, and a stream would be read from another."""
    assert old in MINIMAL
    assert FILE.refusal(tmp_path, MINIMAL.replace(old, new)).startswith(f"write.yaml {message}")


@pytest.mark.parametrize(
    ("retain", "history_ms", "of"),
    [
        ("{history: 7 days}", 7 * 86_400_000, {}),
        ("{shapes: {a: 1 day, b: 2 hours}}", None, {"a": 86_400_000, "b": 7_200_000}),
        ("{history: 1 day, shapes: {}}", 86_400_000, {}),
    ],
)
def test_history_is_kept_for_all_shapes_or_some(
    tmp_path: Path, retain: str, history_ms: int | None, of: dict[str, int]
) -> None:
    """Without a time, for ever."""
    sink = FILE.load(tmp_path, MINIMAL.replace("shapes: r", f"shapes: r, retain: {retain}")).sink
    assert (sink.history_ms, sink.history_ms_of) == (history_ms, of)
    wrong = MINIMAL.replace("shapes: r", "shapes: r, retain: {shapes: {a: a week}}")
    assert FILE.refusal(tmp_path, wrong).startswith("write.yaml line 4: sink.retain.shapes.a is 'a week', not ")


def test_job_that_stops_must_not_hold_anything_back(tmp_path: Path) -> None:
    """What its last batch held would stay in the state, and never be flushed."""
    assert FILE.refusal(tmp_path, MINIMAL + "flush: hold\n") == (
        "write.yaml line 6: flush is hold, which needs an interval as trigger; leave flush out, or set trigger to one "
        "such as 1 second"
    )


@pytest.mark.parametrize("section", ["source", "flushes", "state", "sink", "trigger"])
def test_a_missing_section_is_refused(tmp_path: Path, section: str) -> None:
    """How to write and when to flush may be left out."""
    text = "".join(line for line in MINIMAL.splitlines(keepends=True) if not line.startswith(section))
    assert FILE.refusal(tmp_path, text) == f"write.yaml line 1: {section} is missing"


def test_snapshots_of_new_shapes_need_a_server_and_an_interval(tmp_path: Path) -> None:
    """The job looks for new shapes again and again; without ``auto``, another job takes their snapshots."""
    server = "postgres: {connection: {host: h}, publication: p, connections: 1}\n"
    running = MINIMAL.replace("available_now", '"1 second"')
    config = FILE.load(tmp_path, running + "snapshot: auto\n" + server)
    assert config.tables is not None
    assert (dict(config.tables.connection), config.tables.connections) == ({"host": "h"}, 1)
    assert FILE.load(tmp_path, running + "snapshot: manual\n").tables is None
    assert FILE.refusal(tmp_path, MINIMAL + "snapshot: auto\n" + server) == (
        "write.yaml line 6: snapshot is auto, which needs an interval as trigger; leave snapshot and postgres out, and "
        "run flushtracker snapshot, or set trigger to one such as 1 second"
    )
    assert FILE.refusal(tmp_path, running + server) == (
        "write.yaml line 6: postgres is only used with snapshot: auto; leave it out, or set that"
    )
    assert "postgres" in FILE.refusal(tmp_path, running + "snapshot: auto\n")
