"""The writers' configuration: how a file is read, and the message for each wrong one."""

from dataclasses import replace
from pathlib import Path

import pytest

from flushtracker.config.job_config import StateConfig, load_config
from flushtracker.config.transport import FilesTransport, KafkaTransport
from flushtracker.config.write_config import FlushesConfig, LogConfig, WriteConfig, load_write_config
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.config_files import DURATION, ConfigFile

CONF = Path(__file__).parents[3] / "conf"
FILE = ConfigFile("write.yaml", load_write_config)

COMPLETE = """\
kafka:
  bootstrap_servers: "${SERVERS}"
  retention: "2 days"
  retry_timeout: "1 minute"
  options: {linger.ms: 5}
storage: {path: data, options: {KEY: "${KEY}"}}
write:
  options: {minPartitions: 4, kafka.sasl.jaas.config: "${KEY}"}
  checkpoint: data/checkpoint
  shape_groups: 8
  shuffle_partitions: 2
  delete_after: "30 days"
  write_unit: txn
  flush: hold
  snapshot: manual
  trigger: "2 seconds"
status: false
"""

MINIMAL = "files: f\nstorage: d\nstatus: false\n"


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
    topics = {"shape_changes": "flushtracker.shape_changes", "shapes": "flushtracker.shapes"}
    assert (transport.bootstrap_servers, transport.streams) == ("one:9092", topics)
    assert dict(transport.options) == {"minPartitions": "4", "kafka.sasl.jaas.config": "hunter2"}
    assert (transport.retention_ms, transport.retry_timeout_ms) == (172_800_000, 60_000)
    assert (config.flushes.name, dict(config.flushes.options)) == ("flushtracker.flushes", {"linger.ms": "5"})
    assert config.state == StateConfig("data/checkpoint", shape_groups=8, shuffle_partitions=2)
    assert replace(config.sink, storage_options=LogConfig("", "").storage_options) == LogConfig(
        "data/log", "data/log_shapes", delete_after_ms=30 * 86_400_000
    )
    assert dict(config.sink.storage_options) == {"KEY": "hunter2"}
    assert (config.write_unit, config.flush, config.trigger_ms) == ("txn", "hold", 2_000)
    assert "hunter2" not in repr(config)


def test_cuts_need_kafka_and_batches_that_append_all(tmp_path: Path) -> None:
    """Only Kafka says where the registry of shapes ends, and what a shape holds back is not in the log."""
    assert FILE.load(tmp_path, COMPLETE).acks is None
    assert FILE.load(tmp_path, COMPLETE.replace("flush: hold", "flush: batch")).acks == "data/acks"
    assert FILE.load(tmp_path, MINIMAL).acks is None


def test_omitted_keys_have_their_defaults(tmp_path: Path) -> None:
    """The minimal file states where things are."""
    assert FILE.load(tmp_path, MINIMAL) == WriteConfig(
        transport=FilesTransport({"shape_changes": "f/shape_changes", "shapes": "f/shapes"}),
        flushes=FlushesConfig("f/flushes"),
        state=StateConfig("d/checkpoints/write"),
        sink=LogConfig("d/log", "d/log_shapes"),
        write_unit="txn_fragment",
        flush="batch",
        trigger_ms=1_000,
    )


@pytest.mark.parametrize(
    ("path", "trigger_ms"),
    [
        (CONF / "replay.yaml", 2_000),
        (CONF / "flushtracker.yaml", 1_000),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_shipped_examples_can_be_used(path: Path, trigger_ms: int) -> None:
    """Each runs until it is stopped."""
    config = load_write_config(path)
    assert config.trigger_ms == trigger_ms
    assert isinstance(config.transport, FilesTransport) == (path.name == "replay.yaml")


def test_make_run_has_one_slow_writer() -> None:
    """The plot shows how the ack waits for it: writers and tracker read at one pace, and it flushes far less often."""
    writers, tracker = load_write_config(CONF / "replay.yaml"), load_config(CONF / "replay.yaml")
    assert (writers.flush, writers.trigger_ms) == ("hold", tracker.trigger_ms)
    intervals = {shape.id: shape.flush.interval_ms or 0 for shape in load_shapes(CONF / "shapes.yaml")}
    slow = intervals.pop("events")
    assert slow >= 5 * max(*intervals.values(), writers.trigger_ms or 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("write_unit: txn", "write_units: txn", "line 13: write.write_units is not a known key; did you mean write_un"),
        ("minPartitions", "kafka.isolation.level", "line 8: write.options.kafka.isolation.level cannot be set: the "),
        ("minPartitions", "startingOffsets", "line 8: write.options.startingOffsets cannot be set: "),
        ("shape_groups: 8", "shape_groups: 0", "line 10: write.shape_groups is '0', not a number of at least 1"),
        ("shape_groups: 8", "max_pending_transactions: 8", "line 10: write.max_pending_transactions is not a known"),
        ("partitions: 2", "partitions: 0", "line 11: write.shuffle_partitions is '0', not a number of at least 1"),
        ("data/checkpoint", "data/log", "line 9: write.checkpoint is the same as log; each needs its own"),
        ('"30 days"', '"a month"', "line 12: write.delete_after is 'a month', not " + DURATION),
        ("write_unit: txn", "write_unit: row", "line 13: write.write_unit is 'row', not txn_fragment or txn"),
        ("flush: hold", "flush: each", "line 14: write.flush is 'each', not batch or hold"),
        ("snapshot: manual", "snapshot: never", "line 15: write.snapshot is 'never', not auto or manual"),
        ('"2 seconds"', "once", "line 16: write.trigger is 'once', not available_now, or an interval: " + DURATION),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    """The message has the file, the line, the key, and what is expected."""
    assert old in COMPLETE
    assert FILE.refusal(tmp_path, COMPLETE.replace(old, new)).startswith(f"write.yaml {message}")


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
    sink = FILE.load(tmp_path, f"{MINIMAL}write: {{retain: {retain}}}\n").sink
    assert (sink.history_ms, sink.history_ms_of) == (history_ms, of)
    wrong = MINIMAL + "write: {retain: {shapes: {a: a week}}}\n"
    assert FILE.refusal(tmp_path, wrong).startswith("write.yaml line 4: write.retain.shapes.a is 'a week', not ")


def test_job_that_stops_must_not_hold_anything_back(tmp_path: Path) -> None:
    """What its last batch held would stay in the state, and never be flushed."""
    assert FILE.refusal(tmp_path, MINIMAL + "write: {flush: hold, trigger: available_now}\n") == (
        "write.yaml line 4: write.flush is hold, which needs an interval as write.trigger, such as 1 second"
    )


def test_snapshots_of_new_shapes_need_a_server_and_an_interval(tmp_path: Path) -> None:
    """The job looks for new shapes again and again; otherwise another job takes their snapshots."""
    minimal = "kafka: h:1\nstorage: d\n"
    server, stops = "postgres: {host: h}\n", "write: {trigger: available_now}\n"
    config = FILE.load(tmp_path, minimal + server)
    assert config.tables is not None
    assert (dict(config.tables.connection), config.tables.connections) == ({"host": "h"}, 1)
    assert FILE.load(tmp_path, f"{minimal}write: {{snapshot: manual}}\n").tables is None
    assert FILE.refusal(tmp_path, minimal + server + stops) == (
        "write.yaml line 4: write.trigger is available_now, but this job takes the snapshots, which needs an interval; "
        "set one, or write.snapshot to manual, and run flushtracker snapshot"
    )
    assert FILE.refusal(tmp_path, minimal) == "write.yaml line 1: postgres is missing"
    assert FILE.load(tmp_path, MINIMAL).tables is None
