"""``flushtracker.yaml``: one file for all programs, each key said once; messages have its lines and names."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from flushtracker.capture.capture_config import CaptureConfig, Intervals, SlotConfig, load_capture_config
from flushtracker.cli import main
from flushtracker.config.config_keys import KEYS, json_schema
from flushtracker.config.job_config import JobConfig, SinkConfig, StallConfig, StateConfig, load_config
from flushtracker.config.postgres_config import TablesConfig
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.serve_config import HttpConfig, ServeConfig, load_serve_config
from flushtracker.config.snapshot_config import load_snapshot_config
from flushtracker.config.transport import FilesTransport, KafkaTransport
from flushtracker.config.write_config import LogConfig, load_log, load_write_config
from flushtracker.errors import ConfigError
from flushtracker.kafka.kafka_config import KafkaConfig, load_kafka_config
from flushtracker.shape_log.snapshot.publish_config import load_publish_config
from flushtracker.shapes.shapes_file import read_shapes_file
from tests.support.processes import run_to_end

ROOT: Final = Path(__file__).parents[3]
FOUR_LINES: Final = """\
postgres: "postgresql://capture:${PGPASSWORD}@db.internal:5433/app?sslmode=require"
kafka: "broker:9092"
storage: "s3://bucket/orders"
shapes: shapes.d/
"""
LOADERS: Final[tuple[Callable[[Path], object], ...]] = (
    load_capture_config,
    load_config,
    load_write_config,
    load_snapshot_config,
    load_serve_config,
    load_kafka_config,
)
ODD: Final = 's/e@c"r\\et'


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that a URI could not have without escapes, nor a JAAS configuration."""
    monkeypatch.setenv("PGPASSWORD", ODD)
    monkeypatch.delenv("FLUSHTRACKER_CONFIG", raising=False)


def written(folder: Path, more: str = "", four: str = FOUR_LINES) -> Path:
    path = folder / "flushtracker.yaml"
    path.write_text(four + more)
    return path


def refusal(path: Path, load: Callable[[Path], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return str(caught.value).removeprefix(f"{path} ")


def test_four_lines_suffice_for_every_program(tmp_path: Path) -> None:
    """What two programs must agree on is the same in both, without being said twice."""
    path = written(tmp_path)
    capture, track, write = load_capture_config(path), load_config(path), load_write_config(path)
    assert dict(capture.postgres.connection) == {
        "host": "db.internal",
        "port": "5433",
        "dbname": "app",
        "user": "capture",
        "password": ODD,
        "sslmode": "require",
    }
    assert (capture.postgres.slot, capture.postgres.publication) == ("flushtracker", "flushtracker")
    assert capture.shapes == Path("shapes.d")
    assert capture.acks == track.sink.acks == write.acks == "s3://bucket/orders/acks"
    assert load_kafka_config(path) == capture.kafka
    assert isinstance(track.transport, KafkaTransport)
    assert isinstance(write.transport, KafkaTransport)
    assert {*track.transport.streams.values(), *write.transport.streams.values()} == {
        *capture.kafka.topics.by_role().values()
    }
    assert write.flushes.name == track.transport.streams["flushes"]
    assert write.tables is not None
    assert write.tables.connection == capture.postgres.connection
    assert write.tables.publication == load_snapshot_config(path).postgres.publication == "flushtracker"
    sinks = [write.sink, load_snapshot_config(path).sink, load_serve_config(path).sink, load_log(path)]
    assert {(sink.log, sink.shapes) for sink in sinks} == {("s3://bucket/orders/log", "s3://bucket/orders/log_shapes")}
    assert load_publish_config(path) is None


def test_defaults_are_those_of_the_programs(tmp_path: Path) -> None:
    """The same as of their dataclasses, which tests and other code make."""
    path = written(tmp_path, "write: {snapshot: manual}\nstatus: false\n")
    track, write, serve = load_config(path), load_write_config(path), load_serve_config(path)
    assert track == JobConfig(
        KafkaTransport("broker:9092", track.transport.streams),
        StateConfig("s3://bucket/orders/checkpoints/track"),
        SinkConfig("s3://bucket/orders/acks", "s3://bucket/orders/dead_letters"),
        StallConfig(),
        trigger_ms=1_000,
    )
    assert write.state == StateConfig("s3://bucket/orders/checkpoints/write")
    assert write.sink == LogConfig("s3://bucket/orders/log", "s3://bucket/orders/log_shapes")
    assert serve == ServeConfig(write.sink, HttpConfig("127.0.0.1", 9470))
    capture, tables = load_capture_config(path), load_snapshot_config(path).postgres
    assert capture == CaptureConfig(
        SlotConfig(capture.postgres.connection, "flushtracker", "flushtracker"),
        KafkaConfig("broker:9092", capture.kafka.topics),
        Path("shapes.d"),
        "s3://bucket/orders/acks",
        SecretOptions(),
        Intervals(),
    )
    assert tables == TablesConfig(capture.postgres.connection, "flushtracker")


def test_password_in_the_uri_is_refused_in_plain_text(tmp_path: Path) -> None:
    """As that of a keyword is; the message does not show it."""
    path = written(tmp_path, four=FOUR_LINES.replace("${PGPASSWORD}", "hunter2"))
    said = refusal(path, load_capture_config)
    assert said == "line 1: postgres.password is in plain text; use a variable, ${NAME}, or a passfile"


def test_uri_may_come_from_the_environment_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As platforms give it, with the password in it: it is in no file. Then its escapes are those of a URI."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:a%2Fb@db/app")
    path = written(tmp_path, four=FOUR_LINES.replace(FOUR_LINES.splitlines()[0], 'postgres: "${DATABASE_URL}"'))
    found = load_capture_config(path).postgres.connection
    assert dict(found) == {"host": "db", "dbname": "app", "user": "me", "password": "a/b"}
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:a%2Fb@[db/app")
    said = refusal(path, load_capture_config)
    assert said.startswith("line 1: postgres cannot be used: the connection is not one of libpq")
    assert "a%2Fb" not in said


def test_keywords_of_libpq_may_be_a_mapping(tmp_path: Path) -> None:
    four = FOUR_LINES.replace(FOUR_LINES.splitlines()[0], "postgres: {host: db, user: me, port: 5433}")
    path = written(tmp_path, four=four)
    assert dict(load_capture_config(path).postgres.connection) == {"host": "db", "user": "me", "port": "5433"}


def test_login_at_kafka_is_said_once(tmp_path: Path) -> None:
    """librdkafka's options; those of Spark's client, which is Java's, are derived."""
    four = FOUR_LINES.replace('"broker:9092"', "{bootstrap_servers: 'broker:9092', options: %s}")
    options = (
        "{security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512, sasl.username: me, "
        "sasl.password: '${PGPASSWORD}', ssl.ca.location: /ca.pem, linger.ms: 7}"
    )
    path = written(tmp_path, "track: {options: {minPartitions: 4}}\n", four % options)
    track = load_config(path).transport
    assert isinstance(track, KafkaTransport)
    assert dict(track.options) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="s/e@c\\"r\\\\et";',
        "minPartitions": "4",
    }
    assert load_write_config(path).flushes.options == load_kafka_config(path).options
    assert load_kafka_config(path).options["linger.ms"] == "7"
    path = written(tmp_path, four=four % "{ssl.key.location: /key.pem}")
    load_capture_config(path)
    assert refusal(path, load_config).startswith(
        "line 2: kafka.options.ssl.key.location is not known for Spark's client"
    )
    own = four % "{ssl.key.location: /key.pem}, spark_options: {kafka.ssl.keystore.location: /store.pem}"
    track = load_config(written(tmp_path, four=own)).transport
    assert isinstance(track, KafkaTransport)
    assert dict(track.options) == {"kafka.ssl.keystore.location": "/store.pem"}


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        ("captur: {slot: a}\n", "line 5: captur is not a known key; did you mean capture?"),
        ("capture:\n  slott: a\n", "line 6: capture.slott is not a known key; did you mean slot?"),
        ("track:\n  kafka: other:9092\n", "line 6: track.kafka is not a known key; it is said once, as kafka"),
        ("track: {slot: a}\n", "line 5: track.slot is not a known key; it is said once, as capture.slot"),
        ("write: {colour: red}\n", "line 5: write.colour is not a known key; known keys: trigger, write_unit, flush"),
        ("capture: {intervals: {status: 1}}\n", "line 5: capture.intervals.status is a number; put it in quotes"),
        ("track: {shape_groups: many}\n", "line 5: track.shape_groups is 'many', not a whole number"),
        ("track:\n\n  trigger: soon\n", "line 7: track.trigger is 'soon', not available_now, or an interval"),
        ("capture: {evict: {grace: 1m}}\n", "evict has neither remove_after nor or_when_retained"),
        (
            "track: {checkpoint: 's3://bucket/orders/acks/x'}\n",
            "line 5: track.checkpoint is inside acks; each needs a folder of its own",
        ),
        (
            "snapshot:\n  postgres: {user: reader, dbname: other}\n",
            "line 6: snapshot.postgres.dbname contradicts postgres.dbname on line 1: all read one database",
        ),
        ("track: 7\n", "line 5: track is a number, not a mapping of keys to values"),
        ("snapshot: {into: redis}\n", "line 5: snapshot.into is 'redis', not log or kafka"),
    ],
)
def test_what_is_wrong_is_named_as_in_the_file(tmp_path: Path, more: str, fact: str) -> None:
    """With its line, in the configuration of whichever program reads the key."""
    path, said = written(tmp_path, more), list[str]()

    def attempt(load: Callable[[Path], object]) -> None:
        try:
            load(path)
        except ConfigError as error:
            said.append(str(error))

    for each in LOADERS:
        attempt(each)
    assert any(fact in each for each in said), said
    assert all(each.startswith(f"{path} line ") for each in said)


@pytest.mark.parametrize(
    ("key", "load"),
    [
        ("postgres", load_capture_config),
        ("kafka", load_config),
        ("storage", load_config),
        ("shapes", load_capture_config),
    ],
)
def test_each_of_the_four_lines_is_required(tmp_path: Path, key: str, load: Callable[[Path], object]) -> None:
    """By the programs that read it."""
    path = written(tmp_path, four="".join(re.sub(rf"(?m)^{key}:.*\n", "", FOUR_LINES)))
    assert refusal(path, load) == f"line 1: {key} is missing"


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (
            "kafka: broker",
            "line 2: kafka.bootstrap_servers is 'broker', not brokers with their ports, such as broker:9092",
        ),
        ("kafka: http://broker:9092/", "line 2: kafka.bootstrap_servers is 'http://broker:9092/', not brokers with"),
        ("kafka: {bootstrap_servers: 'a:1;b:2'}", "line 2: kafka.bootstrap_servers is 'a:1;b:2', not brokers with"),
        (
            "storage: s3:/bucket",
            "line 3: storage.path is 's3:/bucket', not a folder, or a URI such as s3://bucket/orders",
        ),
        ("storage: {path: gs:x}", "line 3: storage.path is 'gs:x', not a folder, or a URI such as s3://bucket/orders"),
    ],
)
def test_place_that_no_client_would_take_is_refused(tmp_path: Path, line: str, fact: str) -> None:
    """Rather than sought for ten minutes, or created as a folder."""
    key = line.partition(":")[0]
    path = written(tmp_path, four=re.sub(rf"(?m)^{key}: .*", line, FOUR_LINES))
    for load in (load_config, load_write_config):
        assert refusal(path, load).startswith(fact)


def test_slot_is_not_a_keyword_of_libpq(tmp_path: Path) -> None:
    four = FOUR_LINES.replace(FOUR_LINES.splitlines()[0], "postgres: {host: db, slot: mine}")
    said = refusal(written(tmp_path, four=four), load_capture_config)
    assert said == "line 1: postgres.slot is not a keyword of libpq; set capture.slot"


def test_programs_that_the_file_has_not_are_no_peers(tmp_path: Path) -> None:
    """And do not start. Others are found where the file says."""
    path = written(tmp_path, "serve: false\nstatus: {listen: '0.0.0.0:70', urls: {capture: 'http://c:71'}}\n")
    track, capture = load_config(path).status, load_capture_config(path).status
    assert track is not None
    assert capture is not None
    assert (track.listen, track.peers) == ("0.0.0.0:70", ("http://c:71", "http://127.0.0.1:72"))
    assert (capture.listen, capture.peers) == ("0.0.0.0:71", ("http://127.0.0.1:70", "http://127.0.0.1:72"))
    said = refusal(path, load_serve_config)
    assert said == "line 5: serve is false: this configuration has no such program"
    assert load_config(written(tmp_path, "status: false\n")).status is None


def test_snapshots_for_other_writers_have_topics(tmp_path: Path) -> None:
    """Then capture creates them, too."""
    path = written(tmp_path, "snapshot: {into: kafka, trigger: 5s, postgres: {user: reader}}\nwrite: false\n")
    published = load_publish_config(path)
    assert published is not None
    assert published.kafka == load_capture_config(path).kafka
    assert published.kafka.topics.snapshots_taken == "flushtracker.snapshots_taken"
    assert published.postgres.connection["user"] == "reader"
    assert load_capture_config(path).postgres.connection["user"] == "capture"


def test_streams_may_be_files(tmp_path: Path) -> None:
    """Which replays write; capture and snapshots need Kafka."""
    path = written(tmp_path, four="files: {path: in, max_files_per_trigger: 3}\nstorage: data\n")
    track, write = load_config(path), load_write_config(path)
    assert track.transport == FilesTransport({"fragments": "in/fragments", "flushes": "in/flushes"}, 3)
    assert write.transport == FilesTransport({"shape_changes": "in/shape_changes", "shapes": "in/shapes"}, 3)
    assert (write.flushes.name, write.tables, write.acks) == ("in/flushes", None, None)
    assert load_serve_config(path).sink == write.sink
    assert track.status is not None
    assert track.status.peers == ("http://127.0.0.1:9466", "http://127.0.0.1:9468")
    assert refusal(path, load_capture_config) == (
        "line 1: files is used instead of kafka, which `flushtracker capture` needs"
    )
    assert main(["config", "--config", str(path)]) == 0


def test_a_list_of_shapes_and_a_configuration_are_told_apart(tmp_path: Path) -> None:
    """The first key that is not known would not help."""
    path = written(tmp_path)
    assert refusal(path, read_shapes_file) == "is a configuration, not a list of shapes"
    (shapes := tmp_path / "shapes.yaml").write_text("shapes: []\n")
    assert refusal(shapes, load_config) == "is a list of shapes, not a configuration"


def example(name: str = "flushtracker.yaml") -> str:
    """The example with all that is commented out."""
    text = (ROOT / "conf" / name).read_text()
    four, rest = text.split("# What differs", 1)
    commented = "".join(f"{line[2:]}\n" for line in rest.splitlines()[2:] if line.startswith("# "))
    settled = "\n".join(line for line in four.splitlines() if not line.startswith(("kafka:", "storage:")))
    return f"{settled}\n{commented}"


def test_example_is_right_also_with_everything_that_it_comments_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KAFKA_PASSWORD", "AWS_SECRET_ACCESS_KEY", "FLUSHTRACKER_SECRET"):
        monkeypatch.setenv(name, "12345678")
    text = example().replace("…", "x").replace("https://x", "https://x.example")
    path = written(tmp_path, four=text)
    for load in LOADERS:
        load(path)
        load(ROOT / "conf" / "flushtracker.yaml")
    assert load_write_config(path).tables is None
    jsonschema.validate(yaml.safe_load(text), json_schema())


def test_schema_for_editors_knows_the_same_keys() -> None:
    """Each of the table, and no other."""
    schema: dict[str, Any] = json_schema()
    four = yaml.safe_load(FOUR_LINES)
    jsonschema.validate(four, schema)
    mistakes: list[dict[str, Any]] = [{"captur": {}}, {"capture": {"slott": "a"}}, {"serve": True}, {"kafka": 7}]
    for wrong in mistakes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**four, **wrong}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({key: value for key, value in four.items() if key != "kafka"}, schema)


def test_documentation_has_the_table_of_keys() -> None:
    """``docs/configuration.md`` has a row for each, as the table of the code says."""
    rows = [f"| `{key.path}` | {key.about} | {key.default_text} |" for key in KEYS.values()]
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert [row for row in rows if row not in page] == []


def test_what_is_in_force_is_printed_with_its_origin_and_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STORE", "s3://bucket/x")
    four = FOUR_LINES.replace('"broker:9092"', "{bootstrap_servers: b:1, options: {sasl.password: '${PGPASSWORD}',")
    four = four.replace("'${PGPASSWORD}',", "'${PGPASSWORD}', sasl.username: me, sasl.mechanism: PLAIN}}")
    written(
        tmp_path,
        "capture: {slot: mine}\nserve: {secret: '${PGPASSWORD}'}\n",
        four.replace("s3://bucket/orders", "${STORE}"),
    )
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    assert ODD not in out
    lines = out.splitlines()
    assert lines[0] == "flushtracker.yaml: track, capture, write, serve"
    table = {tuple(re.split(r"  +", line)) for line in lines[1:]}
    assert {
        ("postgres.password", "…", "line 1"),
        ("postgres.host", "db.internal", "line 1"),
        ("capture.slot", "mine", "line 5"),
        ("capture.publication", "flushtracker", "default"),
        ("capture.max_tx_size", "no limit", "default"),
        ("storage.path", "s3://bucket/x", "line 3"),
        ("acks", "s3://bucket/x/acks", "storage, line 3"),
        ("topic fragments", "flushtracker.fragments", "kafka.topic_prefix, default"),
        ("serve.secret", "…", "line 6"),
        ("kafka.options.sasl.password", "…", "line 2"),
        ("status of serve", "127.0.0.1:9468", "status.listen, default"),
    } <= table
    assert len(table) == len(lines) - 1


def test_secret_that_nobody_has_set_is_not_shown_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--config", str(written(tmp_path))]) == 0
    assert re.search(r"^serve\.secret +none +default$", capsys.readouterr().out, re.MULTILINE)


def test_what_a_program_would_refuse_is_refused_by_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "serve: {listen: here}\n")
    assert main(["config", "--config", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"flushtracker config: {path} line 5: serve.listen is 'here', not a host")


def test_file_is_found_by_option_variable_or_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order; without any of them the command line is wrong."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exited:
        main(["track"])
    assert exited.value.code == 2
    assert "there is no flushtracker.yaml in this folder; name a configuration with --config or in" in (
        capsys.readouterr().err
    )
    written(tmp_path)
    assert main(["config"]) == 0
    assert capsys.readouterr().out.startswith("flushtracker.yaml: ")
    monkeypatch.setenv("FLUSHTRACKER_CONFIG", str(tmp_path / "other.yaml"))
    assert main(["config"]) == 2
    assert "other.yaml cannot be read" in capsys.readouterr().err
    assert main(["config", "--config", "flushtracker.yaml"]) == 0
    monkeypatch.delenv("FLUSHTRACKER_CONFIG")
    assert main(["config", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))["title"] == "flushtracker.yaml"


def test_entry_scripts_for_spark_submit_read_it_as_well(tmp_path: Path) -> None:
    path = written(tmp_path, "track:\n  trigger: soon\n")
    done = run_to_end([sys.executable, str(ROOT / "jobs" / "track_flushes.py"), "--config", str(path)], timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith(f"flushtracker track: {path} line 6: track.trigger is 'soon', not available_now")
