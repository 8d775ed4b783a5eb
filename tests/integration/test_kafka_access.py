"""PLAIN, client certificates and tokens of an endpoint: every program works with each, and names what is wrong."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Final

import pytest
from _pytest.mark.structures import ParameterSet
from pyspark.sql import SparkSession

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.capture_loop import CaptureLoop
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.jvm.java import check_java
from flushtracker.spark.kafka_admin import KafkaAdmin
from flushtracker.tracking.job.query import track_flushes
from tests.support.capture_rig import INSERT_USER, CaptureRig, RunningCapture
from tests.support.certificates import Authority
from tests.support.documented_acls import acls_of
from tests.support.kafka_access import WAYS, Access, create_access
from tests.support.kafka_job import IMPATIENT, KafkaJob
from tests.support.kafka_streams import config_file, created_streams
from tests.support.sample_source import SampleSource
from tests.support.secret_watch import SecretWatch, new_secret
from tests.support.secured_broker import SecuredBroker
from tests.support.secured_capture import CaptureSettings
from tests.support.secured_services import LIMIT_S, Run, SettingsOf
from tests.support.seeds import every, in_turn
from tests.support.token_endpoint import TokenEndpoint
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
TRACKED: Final = ("fragments", "flushes")
LIFETIME_S: Final = 4
"""Short enough that tokens are renewed, and long enough that a slow machine gets one in time."""
RENEWALS: Final = 2
_LONG_S: Final = 120
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_LOGIN: Final = "kafka.sasl.jaas.config"
_JAVA_FAULTS: Final = (
    *("password", "key's password", "expired", "foreign", "PBES2"),
    *("secret", "handler", "authority", "down"),
)


def ways_from(first: int) -> list[ParameterSet]:
    """One of the ways with each commit: another one for each program."""
    return in_turn((*WAYS[first:], *WAYS[:first]))


@pytest.fixture(autouse=True)
def _endpoint_answers(secured_broker: SecuredBroker) -> Iterator[None]:
    yield
    secured_broker.tokens.heal()


def settings_for(access: Access, settings_of: SettingsOf) -> CaptureSettings:
    """Capture's settings for this client; no SCRAM user is used."""
    settings = settings_of(set())
    settings.kafka |= {"bootstrap_servers": access.servers, "options": access.options}
    return settings


# What works


@pytest.mark.parametrize("way", ways_from(0))
def test_capture_works_and_shows_no_secret(
    secured_rig: CaptureRig, secured_broker: SecuredBroker, settings_of: SettingsOf, tmp_path: Path, way: str
) -> None:
    """With its log in detail, and with the documented ACLs alone."""
    rig, topics = secured_rig, secured_rig.topics
    access = create_access(secured_broker, way, acls_of("capture", topics))
    settings = settings_for(access, settings_of)
    hidden = {value: f"${{{name}}}" for name, value in access.secrets.items()}
    settings.kafka["options"] = {name: hidden.get(value, value) for name, value in access.options.items()}
    watch, config = SecretWatch(access.secrets), settings.write(tmp_path)
    before = len(rig.operations("users"))
    with watch.running(tmp_path / "capture.log", "capture", "--config", str(config)) as process:
        rig.server.execute(INSERT_USER)
        wait_until(lambda: len(rig.operations("users")) > before, "the change", _LONG_S)
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    watch.search("topics", [value for role in topics for value in rig.values(role)])
    watch.require_no_secret(tmp_path)
    assert not any(token in (tmp_path / "capture.log").read_text() for token in secured_broker.tokens.tokens)


@pytest.mark.parametrize("way", ways_from(1))
def test_track_works(spark: SparkSession, secured_broker: SecuredBroker, tmp_path: Path, way: str) -> None:
    """With the documented ACLs alone."""
    job, source = KafkaJob(tmp_path, secured_broker.open_servers), SampleSource()
    job.write([source.transaction(2000, "users"), source.flushed("users", 2000)])
    access = create_access(secured_broker, way, acls_of("track", {role: job.topic(role) for role in TRACKED}))
    track_flushes(spark, job.secured_config(access.servers, access.java_options), Event())
    assert [ack for _, _, ack in job.acks()] == [2000]


@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_java_reads_key_stores(spark: SparkSession, secured_broker: SecuredBroker, tmp_path: Path, kind: str) -> None:
    """As other programs of Java have them; librdkafka reads the former, too."""
    password, store = new_secret(), tmp_path / "client.p12"
    store.write_bytes(secured_broker.authority.issue_store("client-of-store", password))
    access = create_access(secured_broker, "certificate")
    trust = {name: value for name, value in access.java_options.items() if ".key" not in name}
    if kind == "JKS":
        store = converted(store, password)
    options = trust | {
        "kafka.ssl.keystore.type": kind,
        "kafka.ssl.keystore.location": str(store),
        "kafka.ssl.keystore.password": password,
        "kafka.ssl.key.password": password,
    }
    assert java_error(spark, replace(access, java_options=options)) is None
    wrong = options | {"kafka.ssl.keystore.password": new_secret()}
    assert "; correct kafka.ssl.keystore.password or" in str(java_error(spark, replace(access, java_options=wrong)))


def converted(store: Path, password: str) -> Path:
    """The store of PKCS #12 as one of the kind JKS, by Java itself."""
    path = store.with_suffix(".jks")
    command = [str(check_java().launcher.with_name("keytool")), "-importkeystore", "-noprompt"]
    command += ["-srckeystore", str(store), "-srcstoretype", "PKCS12", "-srcstorepass:env", "PASSWORD"]
    command += ["-destkeystore", str(path), "-deststoretype", "JKS", "-deststorepass:env", "PASSWORD"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PASSWORD": password})
    return path


# What is wrong


def wrong_ways(broker: SecuredBroker, folder: Path) -> dict[str, tuple[Access, str]]:
    """The options of librdkafka with one thing wrong, and what must be said."""
    plain, certificate, token = (create_access(broker, way) for way in WAYS)
    trust = {"security.protocol": "SSL", "ssl.ca.location": str(broker.ca_file)}
    (folder / "revoked.pem").write_text(broker.authority.revoked(broker.certificate("certificates")))
    wrong = {name: changed(access) for name, access in (("plain", plain), ("key", certificate), ("token", token))}
    return {
        "password": (wrong["plain"], "correct the user, the password or the mechanism"),
        "key's password": (wrong["key"], "; correct the file, or ssl.key.password"),
        "no certificate": (
            with_options(certificate, trust, only=True),
            "; that listener demands a client's certificate",
        ),
        "expired": (
            with_options(certificate, trust | issued(broker.authority, expired=True), only=True),
            "has not expired",
        ),
        "foreign": (with_options(certificate, trust | issued(Authority("x")), only=True), "trusts who signed it"),
        "revoked": (
            with_options(certificate, {"ssl.crl.location": str(folder / "revoked.pem")}),
            "certificate revoked; replace it",
        ),
        "secret": (wrong["token"], "; correct sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret"),
        "endpoint's authority": (
            with_options(token, {"https.ca.location": str(broker.other_ca_file)}),
            "https.ca.location",
        ),
        "endpoint's name": (
            with_options(token, {_URL: broker.tokens.token_url.replace("localhost", "127.0.0.1")}),
            "name",
        ),
    }


def with_options(access: Access, options: Mapping[str, str], *, only: bool = False) -> Access:
    return replace(access, options={**({} if only else access.options), **options})


def changed(access: Access) -> Access:
    """The same client with a wrong secret."""
    (right,), wrong = access.secrets.values(), new_secret()
    options, java = (
        {name: value.replace(right, wrong) for name, value in each.items()}
        for each in (access.options, access.java_options)
    )
    return replace(access, options=options, java_options=java)


def issued(authority: Authority, *, expired: bool = False) -> dict[str, str]:
    key, certificate = authority.issue("client", expired=expired)
    return {"ssl.key.pem": key, "ssl.certificate.pem": certificate}


def test_what_is_wrong_is_named_by_librdkafka(
    secured_broker: SecuredBroker, topic_name: Callable[[str], str], tmp_path: Path, run: Run
) -> None:
    """Each within seconds, on one line, without a secret (which ``run`` checks)."""
    streams = created_streams(secured_broker.open_servers, topic_name)
    lines = {}
    for fault, (access, expected) in wrong_ways(secured_broker, tmp_path).items():
        config = replace(streams, bootstrap_servers=access.servers, options=SecretOptions(access.options))
        code, line = run("topics", "--config", str(config_file(config, tmp_path / "kafka.yaml")))
        lines[fault] = (code, expected in line, line)
    assert {fault: code for fault, (code, _, _) in lines.items()} == dict.fromkeys(lines, 6) | {"key's password": 2}
    assert [line for _, is_expected, line in lines.values() if not is_expected] == []


def java_error(spark: SparkSession, access: Access) -> BrokerError | ConfigError | None:
    """The error of a job's first request, if there is one; it shows no secret."""
    transport = KafkaTransport(access.servers, MappingProxyType({}), SecretOptions(access.java_options))
    found = None
    try:
        with KafkaAdmin(spark, transport) as admin:
            admin.cluster_id()
    except (BrokerError, ConfigError) as error:
        found = error
    assert "secret-" not in str(found)
    return found


def with_java(access: Access, options: Mapping[str, str]) -> Access:
    return replace(access, java_options={**access.java_options, **options})


def wrong_java_ways(broker: SecuredBroker, folder: Path) -> dict[str, tuple[Access, type[Exception], str]]:
    """The options of Java with one thing wrong, the error, and what it must say."""
    plain, certificate, token = (create_access(broker, way) for way in WAYS)
    (password,) = certificate.secrets.values()
    unencrypted = {name: text for name, text in certificate.java_options.items() if name != "kafka.ssl.key.password"}
    stores = {}
    for name, pair, options in (
        ("expired", broker.authority.issue("client", expired=True), unencrypted),
        ("foreign", Authority("x").issue("client"), unencrypted),
        ("PBES2", broker.authority.issue("client", password=password), certificate.java_options),
    ):
        file = folder / f"{name}.pem"
        file.write_text("".join(pair))
        stores[name] = replace(certificate, java_options={**options, "kafka.ssl.keystore.location": str(file)})
    login = token.java_options[_LOGIN]
    no_handler = {name: text for name, text in token.java_options.items() if "handler" not in name}
    other_ca = login.replace(str(broker.ca_file), str(broker.other_ca_file))
    return {
        "password": (changed(plain), ConfigError, "correct user and password in kafka.sasl.jaas.config"),
        "key's password": (changed(certificate), ConfigError, "; correct kafka.ssl.key.password"),
        "expired": (stores["expired"], ConfigError, "a broker refuses a client's certificate"),
        "foreign": (stores["foreign"], ConfigError, "a broker refuses a client's certificate"),
        "PBES2": (stores["PBES2"], ConfigError, "encrypt it with openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES"),
        "secret": (changed(token), ConfigError, "correct clientId and clientSecret in kafka.sasl.jaas.config"),
        "handler": (replace(token, java_options=no_handler), ConfigError, "set it to the handler of token endpoints"),
        "authority": (
            with_java(token, {_LOGIN: other_ca, **IMPATIENT}),
            BrokerError,
            "or its certificate is not trusted",
        ),
        "down": (
            with_java(token, {f"kafka.{_URL}": "https://localhost:9/token", **IMPATIENT}),
            BrokerError,
            "does not answer",
        ),
    }


@pytest.mark.parametrize("fault", in_turn(_JAVA_FAULTS, 2))
def test_what_is_wrong_is_named_by_the_job(
    spark: SparkSession, secured_broker: SecuredBroker, tmp_path: Path, fault: str
) -> None:
    """A refusal ends it; a token that does not come is retried."""
    ways = wrong_java_ways(secured_broker, tmp_path)
    assert tuple(ways) == _JAVA_FAULTS
    access, kind, text = ways[fault]
    error = java_error(spark, access)
    assert type(error) is kind
    assert text in str(error)


@pytest.mark.parametrize("skew_s", [pytest.param(-3_700, marks=pytest.mark.soak), -3_610, 3_000])
def test_clocks_that_differ(
    spark: SparkSession,
    secured_broker: SecuredBroker,
    topic_name: Callable[[str], str],
    tmp_path: Path,
    run: Run,
    skew_s: int,
) -> None:
    """A token that has expired is of no use, even where the broker would still accept it; one of the future is."""
    access = create_access(secured_broker, "token")
    secured_broker.tokens.skew_s = skew_s
    streams = created_streams(secured_broker.open_servers, topic_name)
    config = replace(streams, bootstrap_servers=access.servers, options=SecretOptions(access.options))
    code, line = run("topics", "--config", str(config_file(config, tmp_path / "kafka.yaml")))
    error = java_error(spark, with_java(access, IMPATIENT) if skew_s < 0 else access)
    if skew_s < 0:
        assert code == 6
        assert "Must supply an unexpired token" in line
        assert "; set the clocks (token endpoint localhost:" in line
        # Java leaves it to the broker, which takes it for 30 seconds more, but ends the connection at once.
        assert type(error) is BrokerError
    else:
        assert "Topic authorization failed" in line
        assert error is None


# Tokens that end in mid-stream


@every(2, 0)
@pytest.mark.parametrize("failure", in_turn((503, "hang", 401)))
def test_capture_renews_its_token_and_outlasts_an_endpoint_that_is_away(
    secured_rig: CaptureRig,
    secured_broker: SecuredBroker,
    settings_of: SettingsOf,
    tmp_path: Path,
    failure: int | str,
) -> None:
    """Whether that refuses, is overloaded or hangs; nothing is lost, and nothing is published twice."""
    rig, tokens = secured_rig, secured_broker.tokens
    access = create_access(secured_broker, "token", acls_of("capture", rig.topics))
    tokens.lifetime_s = LIFETIME_S
    published, stop = len(rig.operations("users")), Event()
    config = settings_for(access, settings_of).write(tmp_path)
    capture = RunningCapture(CaptureLoop(load_capture_config(config), stop), stop)

    def publish_next() -> None:
        nonlocal published
        rig.server.execute(INSERT_USER)
        published += 1
        wait_until(lambda: len(rig.operations("users")) >= published, "the change", _LONG_S)
        assert capture.error is None

    try:
        publish_until_renewed(tokens, publish_next)
        tokens.failure = failure
        # Until the broker has ended the connections of the last token.
        stop.wait(LIFETIME_S + 1)
        rig.server.execute(INSERT_USER)
        published += 1
        stop.wait(1)
        tokens.heal(LIFETIME_S)
        publish_until_renewed(tokens, publish_next)
        assert len(rig.operations("users")) == published
    finally:
        stop.set()
        capture.thread.join(LIMIT_S)


def publish_until_renewed(tokens: TokenEndpoint, publish_next: Callable[[], None]) -> None:
    """Publish on, until a client that works has got further tokens."""
    publish_next()
    issued = len(tokens.issued)
    while len(tokens.issued) < issued + RENEWALS:
        publish_next()


@every(2, 1)
def test_track_renews_its_token_and_outlasts_an_endpoint_that_is_away(
    spark: SparkSession, secured_broker: SecuredBroker, tmp_path: Path
) -> None:
    """The last token expires meanwhile, and the job retries."""
    tokens, source = secured_broker.tokens, SampleSource()
    job = KafkaJob(tmp_path, secured_broker.open_servers)
    access = create_access(secured_broker, "token", acls_of("track", {role: job.topic(role) for role in TRACKED}))
    tokens.lifetime_s = LIFETIME_S
    config = replace(job.secured_config(access.servers, access.java_options), trigger_ms=200)
    stop, lsn = Event(), 1000

    def acknowledge_next() -> None:
        nonlocal lsn
        lsn += 1000
        job.write([source.transaction(lsn, "users"), source.flushed("users", lsn)])
        wait_until(lambda: [ack for _, _, ack in job.acks()][-1:] == [lsn], f"ack {lsn}", _LONG_S)
        assert not ended.done()

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(track_flushes, spark, config, stop)
        try:
            publish_until_renewed(tokens, acknowledge_next)
            tokens.failure = 503
            stop.wait(LIFETIME_S + 1)
            tokens.heal(LIFETIME_S)
            publish_until_renewed(tokens, acknowledge_next)
        finally:
            stop.set()
            ended.result(_LONG_S)
