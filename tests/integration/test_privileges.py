"""Least privilege: each program works with exactly what docs/security.md lists, and says which of it is missing."""

import subprocess
import sys
import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from pyspark.sql import SparkSession

from flushtracker.cli import main
from flushtracker.config.job_config import StateConfig
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import FlushesConfig, LogConfig, WriteConfig
from flushtracker.errors import BrokerError, ConfigError, FlushtrackerError
from flushtracker.events.records import record_of
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.shape_log.write.query import write_shapes
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.tracking.job.query import Recovery, track_flushes
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from tests.support.capture_rig import CaptureRig
from tests.support.documented_acls import acls_of, documented_acls
from tests.support.kafka_job import KafkaJob
from tests.support.kafka_streams import config_file, created_streams, topic_names, values
from tests.support.recorded_workload import RECORDING_OPTIONS
from tests.support.secured_broker import Acl, SecuredBroker
from tests.support.secured_services import LIMIT_S, Run, SettingsOf, remove_old_shape
from tests.support.seeds import in_turn
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]


def topics_of(rig: CaptureRig) -> dict[str, str]:
    topics: dict[str, str] = rig.topics
    return topics


@pytest.mark.parametrize("acl", in_turn(documented_acls("topics"), 2))
def test_topics_names_the_missing_acl(
    secured_rig: CaptureRig, settings_of: SettingsOf, tmp_path: Path, run: Run, acl: tuple[str, str]
) -> None:
    """With all of them, the topics are correct."""
    operation, role = acl
    name, acls = topics_of(secured_rig)[role], acls_of("topics", topics_of(secured_rig))
    arguments = ("topics", "--config", str(tmp_path / "capture.yaml"))
    settings_of(acls).write(tmp_path)
    assert main([*arguments]) == 0
    settings_of(acls - {(operation, name)}).write(tmp_path)
    code, line = run(*arguments)
    assert code == 6
    assert f"topic {name} cannot be described" in line
    assert line.endswith(f"{operation} on topic {name}")


def test_topics_creates_topics_if_it_may_create_them(
    secured_rig: CaptureRig, secured_broker: SecuredBroker, settings_of: SettingsOf, tmp_path: Path, run: Run
) -> None:
    """Besides what it needs to check them; an ACL to create one in the cluster is not needed."""
    prefix = uuid.uuid4().hex[:12]
    new = {role: f"{prefix}.{role}" for role in topics_of(secured_rig)}
    acls, arguments = acls_of("topics", new), ("topics", "--config", str(tmp_path / "capture.yaml"), "--create")
    settings = settings_of(acls)
    settings.kafka["topic_prefix"] = prefix
    settings.write(tmp_path)
    code, line = run(*arguments)
    assert code == 6
    assert line.endswith(
        f"topic {new['fragments']} cannot be created: Authorization failed; allow this user CREATE on "
        f"topic {new['fragments']}"
    )
    settings = settings_of(acls | {("CREATE", name) for name in new.values()})
    settings.kafka["topic_prefix"] = prefix
    settings.write(tmp_path)
    assert main([*arguments]) == 0
    assert {*new.values()} <= topic_names(secured_broker.open_servers)


@pytest.mark.parametrize(("operation", "role"), documented_acls("capture"))
def test_capture_names_the_missing_acl(
    secured_rig: CaptureRig, settings_of: SettingsOf, tmp_path: Path, run: Run, operation: str, role: str
) -> None:
    """Some are needed only when it reads the end of a topic, removes a shape or sends the first change."""
    remove_old_shape(secured_rig)
    name, acls = topics_of(secured_rig)[role], acls_of("capture", topics_of(secured_rig))
    config = settings_of(acls - {(operation, name)} | {("DESCRIBE", name)}).write(tmp_path)
    code, line = run("capture", "--config", str(config))
    assert code == 6
    assert f"topic {name} " in line
    assert f"; allow this user {operation} on topic {name}" in line


def _one_change(secured_broker: SecuredBroker, writer: str = LOG_WRITER) -> KafkaConfig:
    """New topics, with a shape of this writer and an insert into it."""
    created = created_streams(secured_broker.open_servers, lambda name: f"{name}-{uuid.uuid4().hex[:12]}")
    at, commit = LogOffset(100, 0), Commit("2026-01-01T00:00:00Z", 1)
    item = LogItem(at, "insert", "k", {"id": "1"}, None)
    event = ShapeChangesEvent(
        *("s", "users", 7, LogOffset(99, 0), at),
        start=True,
        has_begin=True,
        commit=commit,
        items=(item,),
        writer=writer,
    )
    entry = ShapeEntry("s", ShapeDefinition("users", ("public", "t"), writer=writer), 1, LogOffset(90, 0))
    publisher = KafkaPublisher(created)
    for stream, key, value in (record_of(entry), record_of(event)):
        publisher.publish(created.topics.by_role()[stream], key, value)
    publisher.flush(LIMIT_S)
    return created


def test_a_writer_of_ones_own_needs_what_is_listed(secured_broker: SecuredBroker, tmp_path: Path) -> None:
    """With all of them the example stores and notifies; with one missing it ends with an error."""
    created = _one_change(secured_broker, "own")
    topics = created.topics.by_role()
    acls = acls_of("sqlite_writer.py", topics)
    assert len(acls) == 3

    def start(acls: set[Acl], name: str) -> "subprocess.Popen[bytes]":
        options = SecretOptions(secured_broker.create_user(acls).options(secured_broker.ca_file))
        config = replace(created, bootstrap_servers=secured_broker.servers, options=options, retry_timeout_ms=5_000)
        file = config_file(config, tmp_path / f"{name}.yaml")
        return subprocess.Popen([sys.executable, ROOT / "examples" / "sqlite_writer.py", file, tmp_path / f"{name}.db"])

    writers = {missing: start(acls - {missing}, str(number)) for number, missing in enumerate(acls)}
    try:
        assert [missing for missing, writer in writers.items() if writer.wait(LIMIT_S) == 0] == []
    finally:
        for writer in writers.values():
            writer.kill()
    assert values(secured_broker.open_servers, created.topics.flushes) == []
    writer = start(acls, "all")
    try:
        flushes = partial(values, secured_broker.open_servers, created.topics.flushes)
        wait_until(lambda: len(flushes()) > 0, "a notification", LIMIT_S)
        time.sleep(3)
        assert writer.poll() is None
    finally:
        writer.kill()


def test_publisher_without_any_right_to_write_is_told_so(secured_broker: SecuredBroker) -> None:
    """The broker refuses the producer itself, and then the client discards the records; that is not the reason."""
    created = created_streams(secured_broker.open_servers, lambda name: f"{name}-{uuid.uuid4().hex[:12]}")
    user = secured_broker.create_user(("DESCRIBE", name) for name in created.topics.by_role().values())
    options = SecretOptions(user.options(secured_broker.ca_file))
    publisher = KafkaPublisher(replace(created, bootstrap_servers=secured_broker.servers, options=options))
    publisher.publish(created.topics.flushes, "key", "value")
    with pytest.raises(BrokerError) as caught:
        publisher.flush(LIMIT_S)
    assert str(caught.value).startswith(f"Kafka at {secured_broker.servers} accepts no more records: ")
    assert str(caught.value).endswith("Cluster authorization failed; allow this user WRITE on its topics; start again")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("ALTER ROLE capture NOLOGIN", 'role "capture" is not permitted to log in; ALTER ROLE … LOGIN'),
        ("ALTER ROLE capture NOREPLICATION", 'role capture may not read a slot; ALTER ROLE "capture" REPLICATION'),
        ("REVOKE CONNECT ON DATABASE postgres FROM capture", "CONNECT privilege; GRANT CONNECT ON DATABASE …"),
    ],
)
def test_capture_names_what_its_role_lacks(
    secured_rig: CaptureRig, settings_of: SettingsOf, tmp_path: Path, run: Run, statement: str, message: str
) -> None:
    """Each attribute and each grant of the page's statements."""
    config = settings_of(acls_of("capture", topics_of(secured_rig))).write(tmp_path)
    secured_rig.server.execute(statement)
    try:
        code, line = run("capture", "--config", str(config))
    finally:
        secured_rig.server.execute(
            "ALTER ROLE capture LOGIN REPLICATION", "GRANT CONNECT ON DATABASE postgres TO capture"
        )
    assert code == 7
    assert message in line


def test_capture_says_who_can_create_the_publication(
    secured_rig: CaptureRig, settings_of: SettingsOf, tmp_path: Path, run: Run
) -> None:
    """Or which privilege is missing."""
    settings = settings_of(acls_of("capture", topics_of(secured_rig)))
    settings.publication = "other"
    secured_rig.server.execute("REVOKE CREATE ON DATABASE postgres FROM capture")
    try:
        code, line = run("capture", "--config", str(settings.write(tmp_path)), "--create")
    finally:
        secured_rig.server.execute("GRANT CREATE ON DATABASE postgres TO capture")
    assert code == 7
    assert "publication other cannot be created: " in line
    assert "allow this role CREATE on the database" in line
    assert line.endswith('superuser: CREATE PUBLICATION "other" FOR TABLE "public"."events", "public"."users"')


@pytest.mark.parametrize(("operation", "role"), [("", ""), *documented_acls("replay")])
def test_replay_works_with_the_documented_acls_and_names_a_missing_one(
    secured_broker: SecuredBroker, tmp_path: Path, run: Run, operation: str, role: str
) -> None:
    """On topics of its own, which must be empty."""
    created = created_streams(secured_broker.open_servers, lambda name: f"{name}-{uuid.uuid4().hex[:12]}")
    topics = created.topics.by_role()
    name, acls = topics.get(role), acls_of("replay", topics)
    if name is not None:
        acls = acls - {(operation, name)} | {("DESCRIBE", name)}
    options = SecretOptions(secured_broker.create_user(acls).options(secured_broker.ca_file))
    secured = replace(created, bootstrap_servers=secured_broker.servers, options=options)
    code, line = run("replay", *RECORDING_OPTIONS, "--kafka", str(config_file(secured, tmp_path / "kafka.yaml")))
    assert code == (0 if name is None else 6)
    assert (" shapes took part; " if name is None else f"; allow this user {operation} on topic {name}") in line


@pytest.mark.parametrize("how", in_turn(["start", "recovery", "batch"]))
@pytest.mark.parametrize("role", in_turn([role for _, role in documented_acls("track")]))
def test_track_names_the_missing_acl(
    spark: SparkSession, secured_broker: SecuredBroker, secured_job: KafkaJob, tmp_path: Path, how: str, role: str
) -> None:
    """Without DESCRIBE at its start; else when the recovery reads, or the first batch. It is not retried."""
    names = {each: secured_job.topic(each) for each in ("fragments", "flushes")}
    acls = acls_of("track", names) - {("READ", names[role])}
    user = secured_broker.create_user(acls if how == "start" else acls | {("DESCRIBE", names[role])})
    config = replace(
        secured_job.secured_config(secured_broker.servers, user.java_options(secured_broker.ca_file)),
        state=replace(secured_job.config().state, checkpoint=str(tmp_path / "checkpoint")),
    )
    begin = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        track_flushes(spark, config, Event(), Recovery() if how == "recovery" else None)
    assert time.monotonic() - begin < secured_job.retry_timeout_ms / 1000
    assert str(caught.value).startswith(f"Kafka at {secured_broker.servers} refuses ")
    assert names[role] in str(caught.value)
    assert str(caught.value).endswith("; allow this user READ on that topic")


@pytest.mark.parametrize("acl", [("", ""), *in_turn(documented_acls("write"))])
def test_write_works_with_the_documented_acls_and_names_a_missing_one(
    spark: SparkSession, secured_broker: SecuredBroker, tmp_path: Path, acl: tuple[str, str]
) -> None:
    """Spark reads the changes and the registry, librdkafka publishes the notifications; each has options of its own."""
    operation, role = acl
    created = _one_change(secured_broker)
    topics = created.topics.by_role()
    name, acls = topics.get(role), acls_of("write", topics)
    user = secured_broker.create_user(
        acls if name is None else acls - {(operation, name)} | {("DESCRIBE", name), ("DESCRIBE_CONFIGS", name)}
    )
    config = WriteConfig(
        transport=KafkaTransport(
            secured_broker.servers,
            {each: topics[each] for each in ("shape_changes", "shapes")},
            SecretOptions(user.java_options(secured_broker.ca_file)),
            retry_timeout_ms=5_000,
        ),
        flushes=FlushesConfig(topics["flushes"], SecretOptions(user.options(secured_broker.ca_file))),
        state=StateConfig(str(tmp_path / "checkpoint"), shape_groups=1, shuffle_partitions=1),
        sink=LogConfig(str(tmp_path / "log"), str(tmp_path / "log_shapes")),
        write_unit="txn_fragment",
        flush="batch",
        trigger_ms=None,
    )
    flushes = partial(values, secured_broker.open_servers, topics["flushes"])
    if name is None:
        write_shapes(spark, config, Event())
        assert len(flushes()) == 1
        return
    with pytest.raises(FlushtrackerError) as caught:
        write_shapes(spark, config, Event())
    assert topics[role] in str(caught.value) or role == "flushes"
    assert f"; allow this user {operation} on " in str(caught.value)
    assert flushes() == []
