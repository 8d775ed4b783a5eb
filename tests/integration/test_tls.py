"""TLS and passwords: what is wrong with a connection is named within seconds, and no secret appears anywhere."""

import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.capture_loop import CaptureLoop
from flushtracker.delta.storage import table_rows
from flushtracker.errors import ConfigError
from flushtracker.tracking.job.query import track_flushes
from tests.support.capture_rig import INSERT_USER, CaptureRig, RunningCapture, shape
from tests.support.certificates import Authority
from tests.support.config_file import write_config
from tests.support.documented_acls import acls_of
from tests.support.kafka_job import KafkaJob
from tests.support.secret_watch import SecretWatch
from tests.support.secured_broker import SecuredBroker
from tests.support.secured_capture import FAULTS, PASSWORD, WRONG_PASSWORD, CaptureSettings
from tests.support.secured_postgres import SecuredPostgres
from tests.support.secured_services import LIMIT_S, OLD_SHAPES, Run, SettingsOf
from tests.support.seeds import every, in_turn
from tests.support.waiting import wait_until

LIBRDKAFKA: Final = {
    "authority": "unable to get local issuer certificate; check that ssl.ca.location has the authority that signed it",
    "host name": "certificate is not valid for '127.0.0.1'; connect by a name that it has",
    "expired": "certificate has expired; renew it",
    "password": "invalid credentials with SASL mechanism SCRAM-SHA-512; correct the user, the password",
}
LIBPQ: Final = {
    # The server sends its authority, too, since clients may have certificates of that.
    "authority": "self-signed certificate in certificate chain; check that sslrootcert has the authority that signed",
    "host name": 'does not match host name "127.0.0.1"; connect by a name that the certificate has',
    "expired": "certificate has expired; renew it",
    "password": 'password authentication failed for user "capture"; correct user and password',
}
JAVA: Final = {
    "authority": "unable to find valid certification path to requested target; check that kafka.ssl.truststore",
    "host name": "matching IP address 127.0.0.1 found; connect by a name that the broker's certificate has",
    "expired": "the broker's certificate has expired: renew it",
    "password": "invalid credentials with SASL mechanism SCRAM-SHA-512; correct user and password in kafka.sasl.jaas",
}
TRACKED: Final = ("fragments", "flushes")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("program", in_turn(("topics", "capture")))
def test_what_is_wrong_with_the_connection_to_kafka_is_named(
    settings_of: SettingsOf, tmp_path: Path, run: Run, program: str, fault: str
) -> None:
    """librdkafka itself has the same text for the first three. None is retried until ``retry_timeout``."""
    settings = settings_of(set())
    settings.break_kafka(fault)
    config = settings.write(tmp_path)
    code, line = run(program, "--config", str(config))
    assert code == 6
    assert settings.kafka["bootstrap_servers"] in line
    assert LIBRDKAFKA[fault] in line


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_the_connection_to_postgres_is_named(
    secured_rig: CaptureRig,
    secured_server: SecuredPostgres,
    settings_of: SettingsOf,
    tmp_path: Path,
    run: Run,
    fault: str,
) -> None:
    """libpq itself has the same text for a wrong authority and an expired certificate."""
    settings = settings_of(acls_of("capture", secured_rig.topics))
    settings.break_postgres(fault)
    try:
        code, line = run("capture", "--config", str(settings.write(tmp_path)))
    finally:
        secured_server.present_certificate(expired=False)
    assert code == 7
    assert f"port {secured_server.port}, database postgres: " in line
    assert LIBPQ[fault] in line


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_the_connection_of_the_job_is_named(
    spark: SparkSession, secured_broker: SecuredBroker, secured_job: KafkaJob, fault: str
) -> None:
    """Java's own text says it, but not what to do."""
    user = secured_broker.create_user()
    if fault == "password":
        user = replace(user, password=WRONG_PASSWORD)
    other = {"host name": secured_broker.servers_by_address, "expired": secured_broker.expired_servers}
    servers = other.get(fault, secured_broker.servers)
    ca_file = secured_broker.other_ca_file if fault == "authority" else secured_broker.ca_file
    error = refusal(spark, secured_job, servers, user.java_options(ca_file))
    assert error.startswith(f"Kafka at {servers} refuses ")
    assert JAVA[fault] in error


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kafka.security.protocol", "secret-word"),
        ("kafka.request.timeout.ms", "secret-word"),
        ("kafka.ssl.truststore.type", "secret-word"),
        ("kafka.sasl.jaas.config", "a.b.LoginModule required secret-word username=1;"),
        ("kafka.sasl.jaas.config", 'secret-word username="1";'),
        ("minPartitions", "secret-word"),
    ],
)
def test_job_refuses_an_option_without_showing_its_value(
    spark: SparkSession, secured_broker: SecuredBroker, secured_job: KafkaJob, option: str, value: str
) -> None:
    """Java's messages quote it, or a part of it; it may be a password in the wrong place."""
    user = secured_broker.create_user(acls_of("track", {role: secured_job.topic(role) for role in TRACKED}))
    options = {**user.java_options(secured_broker.ca_file), option: value}
    assert refusal(spark, secured_job, secured_broker.servers, options).startswith("kafka.options: ")


def refusal(spark: SparkSession, job: KafkaJob, servers: str, options: dict[str, str]) -> str:
    """The error of the job with these options, which must come within seconds and have no secret."""
    begin = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        track_flushes(spark, job.secured_config(servers, options), Event())
    assert time.monotonic() - begin < LIMIT_S
    assert "secret-" not in str(caught.value)
    return str(caught.value)


def test_a_certificate_that_expires_while_capture_runs_ends_it(
    secured_rig: CaptureRig, secured_server: SecuredPostgres, settings_of: SettingsOf, tmp_path: Path
) -> None:
    """It notices when it connects again, and does not retry: no retry renews a certificate."""
    config = settings_of(acls_of("capture", secured_rig.topics)).write(tmp_path)
    stop = Event()
    capture = RunningCapture(CaptureLoop(load_capture_config(config), stop), stop)
    try:
        wait_until(lambda: capture.loop.source, "capture holds the slot", LIMIT_S)
        secured_server.present_certificate(expired=True)
        secured_server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'capture'")
        assert "certificate has expired; renew it" in capture.failure()
    finally:
        secured_server.present_certificate(expired=False)
        stop.set()
        capture.thread.join(LIMIT_S)


@pytest.mark.parametrize("is_right", [True, False], ids=["right password", "wrong password"])
def test_capture_works_and_shows_no_secret(
    secured_rig: CaptureRig, secured_broker: SecuredBroker, tmp_path: Path, *, is_right: bool
) -> None:
    """It adds and removes shapes, sends changes, takes a new partition, writes heartbeats; and it logs in detail."""
    rig, topics = secured_rig, secured_rig.topics
    user = secured_broker.create_user(acls_of("capture", topics))
    key, certificate = Authority("a client's CA").issue()
    password = user.password if is_right else WRONG_PASSWORD
    watch = SecretWatch({"KAFKA_PASSWORD": password, "CAPTURE_PASSWORD": PASSWORD, "KEY": key})
    settings = CaptureSettings(rig, secured_broker, user)
    own = {"sasl.password": "${KAFKA_PASSWORD}", "ssl.key.pem": "${KEY}", "ssl.certificate.pem": certificate}
    settings.kafka["options"] |= own
    rig.define(shape("users"), shape("events", "public.events"), shape("new"), allow_removing=OLD_SHAPES)
    log, arguments = tmp_path / "capture.log", ("capture", "--config", str(settings.write(tmp_path)))
    if is_right:
        with watch.running(log, *arguments) as process:
            wait_until(lambda: "new" in rig.registry(), "the new shape", LIMIT_S)
            rig.server.execute("CREATE TABLE events_2 PARTITION OF events FOR VALUES IN (2)")
            rig.server.execute("INSERT INTO events VALUES (1, 2)", INSERT_USER)
            wait_until(lambda: rig.operations("new") and rig.operations("events"), "the changes", LIMIT_S)
            process.terminate()
            assert process.wait(LIMIT_S) == 0
        assert rig.removals()
    else:
        code, output = watch.run(log, *arguments)
        assert code == 6
        assert LIBRDKAFKA["password"] in output
    watch.search("topics", [value for role in topics for value in rig.values(role)])
    watch.require_no_secret(tmp_path)


@every(3, 0)
@pytest.mark.parametrize("case", in_turn(("right password", "wrong password")))
def test_job_works_and_shows_no_secret(
    secured_broker: SecuredBroker, secured_job: KafkaJob, tmp_path: Path, case: str
) -> None:
    """It recovers, acknowledges and writes a dead letter; or it ends before, with Spark's own log and a traceback."""
    topics = {role: secured_job.topic(role) for role in TRACKED}
    user = secured_broker.create_user(acls_of("track", topics))
    is_right = case == "right password"
    if not is_right:
        user = replace(user, password=WRONG_PASSWORD)
    key, certificate = Authority("a client's CA").issue()
    options = user.java_options(secured_broker.ca_file)
    watch = SecretWatch({"JAAS": options["kafka.sasl.jaas.config"], "KEY": key, "PASSWORD": user.password})
    options |= {
        "kafka.sasl.jaas.config": "${JAAS}",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.key": "${KEY}",
        "kafka.ssl.keystore.certificate.chain": certificate,
    }
    settings = {
        "kafka": {"bootstrap_servers": secured_broker.servers, "topic_prefix": secured_job.name},
        "storage": str(tmp_path),
        "track": {"trigger": "available_now", "shuffle_partitions": 2, "options": options},
        "status": False,
    }
    config = write_config(tmp_path / "track.yaml", settings)
    code, output = watch.run(tmp_path / "track.log", "track", "--config", str(config), "--recover")
    assert code == (0 if is_right else 2)
    assert ("flush notifications refused" if is_right else JAVA["password"]) in output
    if is_right:
        tables = [table_rows(DeltaTable(str(tmp_path / name)), ["*"]) for name in ("acks", "dead_letters")]
        assert [len(table) for table in tables] == [1, 1]
        watch.search("tables", [str(table.to_pylist()).encode() for table in tables])
    watch.require_no_secret(tmp_path)
