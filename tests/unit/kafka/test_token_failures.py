"""What is said of a token that librdkafka does not get, told from its text."""

import pytest
from confluent_kafka import KafkaError

from flushtracker.config.secret_options import SecretOptions
from flushtracker.kafka.client import ClientErrors

NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token: "  # noqa: S105  a message
OPTIONS = SecretOptions(
    {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.secret": "hunter2",
        "sasl.oauthbearer.token.endpoint.url": "https://me:hunter3@issuer/token?key=hunter4",
    }
)
CREDENTIALS = "correct sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret or the endpoint's URL"


def noted(text: str, options: SecretOptions = OPTIONS) -> ClientErrors:
    errors = ClientErrors(options)
    errors.note(KafkaError(KafkaError._AUTHENTICATION, text))
    return errors


@pytest.mark.parametrize(
    "reason",
    [
        "Failed to connect to localhost:9 after 0 ms: Could not connect to server",
        "Could not resolve host: nowhere.invalid",
        "Operation timed out after 20003 milliseconds with 0 bytes received",
        "Recv failure: Connection reset by peer",
    ],
)
def test_an_endpoint_that_may_return_is_retried(reason: str) -> None:
    """Until ``retry_timeout``; the reason is logged meanwhile."""
    errors = noted(NO_TOKEN + reason)
    assert not errors.is_refusal
    assert errors.last == NO_TOKEN + reason


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ('{"error": "invalid_client", "error_description": "no hunter2"}', CREDENTIALS),
        ("SSL certificate OpenSSL verify result: unable to get local issuer", "check that https.ca.location has"),
        ("error adding trust anchors from file: /etc/x", "set https.ca.location"),
        ("Must supply an unexpired token: now=2ms, exp=1ms", "set the clocks"),
        ("Failed to decode JWT payload: The token is invalid", "check that sasl.oauthbearer.token.endpoint.url gives"),
    ],
)
def test_a_refused_token_has_a_remedy_and_shows_no_secret(reason: str, remedy: str) -> None:
    """An endpoint may quote what it was sent; of its URL only host and port are shown."""
    errors = noted(NO_TOKEN + reason)
    assert errors.is_refusal
    message = str(errors.refusal("kafka:1"))
    assert message.startswith(f"no token for Kafka at kafka:1: {NO_TOKEN}")
    assert f"; {remedy}" in message
    assert message.endswith(" (token endpoint issuer:443)")
    assert "hunter" not in message


def test_a_client_that_waits_for_its_token_says_so() -> None:
    """While the endpoint answers 503, librdkafka reports nothing."""
    assert ClientErrors(OPTIONS).last.endswith("check that the token endpoint issuer:443 answers")
    assert "set sasl.oauthbearer.method: oidc" in ClientErrors(SecretOptions({"sasl.mechanism": "OAUTHBEARER"})).last
    assert "security.protocol" in ClientErrors(SecretOptions({"sasl.mechanism": "PLAIN"})).last


def test_a_broker_that_refuses_a_client_certificate_is_not_retried() -> None:
    """With TLS 1.3 the client learns that after the handshake, as a connection that breaks."""
    for options, remedy in (
        ({}, "that listener demands a client's certificate: set ssl.certificate.location and ssl.key.location"),
        ({"ssl.keystore.location": "/x"}, "check that the client's certificate has not expired, and that the broker"),
    ):
        errors = ClientErrors(SecretOptions(options))
        alert = "error:0A000416:SSL routines::ssl/tls alert certificate unknown: SSL alert number 46"
        errors.note(KafkaError(KafkaError._TRANSPORT, f"ssl://kafka:1/bootstrap: Receive failed: {alert}"))
        assert errors.is_refusal
        assert remedy in str(errors.refusal("kafka:1"))
