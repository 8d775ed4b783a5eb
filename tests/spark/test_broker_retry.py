"""Retries while a broker is unavailable: for how long, counted from when, and what is reported."""

import logging
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import BrokerError, ConfigError, SinkError
from flushtracker.jvm.jars import SPARK_JARS
from flushtracker.spark import query_run
from flushtracker.spark.kafka_failures import RETRIABLE, kafka_failure
from flushtracker.spark.query_run import BrokerRetry
from flushtracker.tracking.job.query import track_flushes
from tests.support.job_folder import JobFolder

TRANSPORT = KafkaTransport("host:1", {"fragments": "fragments", "flushes": "flushes"})
_READ_THAT = "allow this user READ on that topic"


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_run, "_PAUSE_S", 0.0)


def clock(*times_s: float) -> Callable[[], float]:
    """A clock that returns these times, one per call."""
    times: Iterator[float] = iter(times_s)
    return lambda: next(times)


def failing(times: int, calls: list[int], error: Exception | None = None) -> Callable[[], None]:
    """A function that fails ``times`` times and then succeeds."""

    def attempt() -> None:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error or BrokerError("Kafka at host:1 does not answer: gone")

    return attempt


def test_call_is_retried_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    """A warning states the reason and the remaining time; it is repeated every 30 s, not at each attempt."""
    calls: list[int] = []
    with caplog.at_level(logging.WARNING):
        BrokerRetry(60_000, Event(), clock(0, 10, 29, 31)).call(failing(4, calls))
    assert len(calls) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "Kafka at host:1 does not answer: gone; retrying for up to 60 s more",
        "Kafka at host:1 does not answer: gone; retrying for up to 29 s more",
    ]


def test_retries_end_after_the_timeout() -> None:
    """The error states the reason, the time, and the setting that limits it."""
    with pytest.raises(BrokerError) as caught:
        BrokerRetry(60_000, Event(), clock(0, 30, 61)).call(failing(99, []))
    assert str(caught.value) == "Kafka at host:1 does not answer: gone; gave up after 61 s (kafka.retry_timeout)"


def test_timeout_restarts_after_progress() -> None:
    """Two outages of 40 seconds are not one of 80."""
    retry = BrokerRetry(60_000, Event(), clock(0, 40, 40, 100, 140, 140))
    retry.call(failing(2, []))
    retry.progress()
    calls: list[int] = []
    retry.call(failing(2, calls))
    assert len(calls) == 3


def test_other_errors_are_not_retried() -> None:
    """A retry would not help."""
    calls: list[int] = []
    with pytest.raises(SinkError):
        BrokerRetry(60_000, Event()).call(failing(1, calls, SinkError("full")))
    assert len(calls) == 1


def test_retries_end_when_the_job_is_stopped() -> None:
    """A job whose broker is unavailable stops as cleanly as a running one."""
    stop, calls = Event(), list[int]()

    def attempt() -> None:
        calls.append(1)
        stop.set()
        raise BrokerError("gone")

    BrokerRetry(60_000, stop).call(attempt)
    assert calls == [1]


def test_bootstrap_name_that_does_not_resolve_is_retried(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As that of a service whose pods are not ready: it is unavailable, not a wrong configuration."""
    servers = "kafka.invalid:9092"
    transport = KafkaTransport(servers, TRANSPORT.streams, SecretOptions({}), retry_timeout_ms=1)
    config = replace(JobFolder(tmp_path).config(), transport=transport)
    with caplog.at_level(logging.WARNING), pytest.raises(BrokerError) as caught:
        track_flushes(spark, config, Event())
    reason = f"Kafka at {servers} does not answer: No resolvable bootstrap urls given in bootstrap.servers"
    assert [record.getMessage() for record in caplog.records] == [f"{reason}; retrying for up to 0 s more"]
    assert re.fullmatch(rf"{re.escape(reason)}; gave up after \d+ s \(kafka.retry_timeout\)", str(caught.value))


def test_every_retriable_error_of_kafka_is_known(spark: SparkSession) -> None:
    """The list is that of the client's classes, but for topics that do not exist."""
    jvm: Any = spark.sparkContext._jvm
    retriable = jvm.org.apache.kafka.common.errors.TimeoutException("x").getClass().getSuperclass()
    package = "org/apache/kafka/common/errors/"
    jar = next(path for path in SPARK_JARS.paths() if path.name.startswith("kafka-clients"))
    with zipfile.ZipFile(jar) as archive:
        names = [Path(name).stem for name in archive.namelist() if name.startswith(package) and "$" not in name]
    loader = retriable.getClassLoader()
    found = {
        name.removesuffix("Exception")
        for name in names
        if name.endswith("Exception")
        and retriable.isAssignableFrom(loader.loadClass(f"{package.replace('/', '.')}{name}"))
    }
    assert found - RETRIABLE == {"UnknownTopicOrPartition", "UnknownTopicId"}
    assert found >= RETRIABLE


@pytest.mark.parametrize("name", ["UnknownTopicOrPartition", "UnknownTopicId"])
def test_topic_that_is_deleted_while_the_job_runs_is_named_and_not_waited_for(name: str) -> None:
    """One that is created again has other records; the start of the job compares the ids of topics."""
    failure = kafka_failure(f"Caused by: org.apache.kafka.common.errors.{name}Exception: This server does", TRANSPORT)
    assert type(failure) is ConfigError
    topics = ", ".join(TRANSPORT.streams.values())
    reason = f"{name}Exception: This server does; start again, which says what to do if it was deleted"
    assert f"no longer has one of the topics {topics}: {reason}" in str(failure)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("NotLeaderOrFollowerException: For requests intended only for the leader", None),
        ("LeaderNotAvailableException: There is no leader", None),
        ("TimeoutException: Timed out waiting for a node assignment", None),
        ("BrokerNotAvailableException: The broker is not available.", None),
        ("TopicAuthorizationException: Not authorized to access topics: [flushes]", _READ_THAT),
        ("SaslAuthenticationException: Failed", "correct user and password in kafka.sasl.jaas.config"),
        ("UnsupportedVersionException: The broker does not", "correct kafka.options, or what its user may do"),
    ],
)
def test_retriable_errors_of_kafka_are_told_from_permanent_ones(text: str, remedy: str | None) -> None:
    """A permanent one ends the job at once, and says what to correct."""
    cause = f"Job aborted\nLost task 0.0 (TID 1): org.apache.kafka.common.errors.{text}\n\tat org.apache.kafka.X"
    failure = kafka_failure(cause, TRANSPORT)
    if remedy is None:
        assert type(failure) is BrokerError
        assert str(failure) == f"Kafka at host:1 does not answer: {text}"
    else:
        assert type(failure) is ConfigError
        assert str(failure) == f"Kafka at host:1 refuses a request: {text}; {remedy}"


def test_a_refusal_that_names_no_topic_says_which_the_job_reads() -> None:
    """As of a job whose ACL is taken while it runs."""
    refused = "org.apache.kafka.common.errors.TopicAuthorizationException: Topic authorization failed."
    assert str(kafka_failure(refused, TRANSPORT)) == (
        "Kafka at host:1 refuses a request: TopicAuthorizationException: Topic authorization failed; allow this user "
        "READ on each of the topics fragments, flushes"
    )


@pytest.mark.parametrize("is_down", [True, False])
def test_a_token_endpoint_that_is_down_is_retried_and_a_refusal_is_not(*, is_down: bool) -> None:
    """Java has the same exception for both; the secret of the client may be in the endpoint's answer."""
    transport = replace(
        TRANSPORT, options=SecretOptions({"kafka.sasl.login.callback.handler.class": "h", "x": "hunter2"})
    )
    down = "An internal error occurred while retrieving token from callback handler"
    refused = (
        "org.apache.kafka.common.KafkaException: a.b.UnretryableException: java.io.IOException: The response code 401 "
        'and error response {"invalid_client" - "hunter2"} was encountered reading the token endpoint response; will\n'
    )
    failure = kafka_failure(
        f"javax.security.auth.login.LoginException: {down if is_down else refused}\n\tat a", transport
    )
    if is_down:
        assert type(failure) is BrokerError
        assert str(failure).startswith(
            "no token for Kafka at host:1: the token endpoint does not answer, or its certif"
        )
        invalid = 'org.apache.kafka.common.errors.SaslAuthenticationException: {"status":"invalid_token"}'
        assert type(kafka_failure(invalid, transport)) is BrokerError
        assert str(kafka_failure(down, TRANSPORT)).endswith("set it to the handler of token endpoints")
    else:
        assert type(failure) is ConfigError
        assert 'status 401 and error response {"invalid_client" - "…"}; correct clientId and clientSecret' in str(
            failure
        )


def test_errors_that_are_not_of_kafka_are_left_to_others() -> None:
    """They are neither retried nor called a refusal."""
    assert kafka_failure("java.lang.OutOfMemoryError: Java heap space", TRANSPORT) is None
