"""``snapshot`` with Kafka's documented ACLs alone, and while they are taken from it and given back."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Final, cast

import pytest

from flushtracker.config.secret_options import SecretOptions
from flushtracker.errors import FlushtrackerError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shape_log.snapshot.kafka_snapshots import KafkaSnapshots
from flushtracker.shape_log.snapshot.loop import SnapshotLoop
from flushtracker.shape_log.snapshot.publish_config import PublishConfig
from tests.support.brokers import Broker
from tests.support.capture_rig import shape
from tests.support.config_file import change_config
from tests.support.documented_acls import acls_of, documented_acls
from tests.support.published_snapshots import PublishingRig, publishing_rig
from tests.support.secured_broker import SecuredBroker, User
from tests.support.secured_services import Run
from tests.support.seeds import in_turn
from tests.support.waiting import wait_until

_TABLES: Final = (
    "CREATE TABLE users (id int PRIMARY KEY)",
    "ALTER TABLE users REPLICA IDENTITY FULL",
    "INSERT INTO users SELECT generate_series(1, 10)",
)
_LIMIT_S: Final = 120


@pytest.fixture
def publishing(
    postgres: LocalPostgres, secured_broker: SecuredBroker, tmp_path: Path, topic_name: Callable[[str], str]
) -> Iterator[PublishingRig]:
    """Ten users, and a running capture that may do everything."""
    broker = cast("Broker", SimpleNamespace(bootstrap_servers=secured_broker.open_servers))
    with publishing_rig(postgres, broker, tmp_path, topic_name, _TABLES) as publishing:
        publishing.rig.start()
        yield publishing


def _define(publishing: PublishingRig, *names: str) -> None:
    rig = publishing.rig
    rig.define(*(shape(name, "public.users", writer="own") for name in names))

    def are_visible() -> bool:
        registry = rig.registry()
        return all(name in registry and registry[name].starts_visible for name in names)

    rig.wait(are_visible, "the shapes to be registered, with visible starts")


@pytest.mark.parametrize("acl", [("", ""), *in_turn(documented_acls("snapshot"))])
def test_snapshot_works_with_the_documented_acls_and_names_a_missing_one(
    publishing: PublishingRig, secured_broker: SecuredBroker, run: Run, acl: tuple[str, str]
) -> None:
    """A topic without records needs no READ, so a snapshot has been taken before."""
    operation, role = acl
    _define(publishing, "before")
    publishing.take()
    _define(publishing, "before", "users")
    topics = publishing.rig.topics
    name, acls = topics.get(role), acls_of("snapshot", topics)
    if name is not None:
        acls = acls - {(operation, name)} | {("DESCRIBE", name)}
    user = secured_broker.create_user(acls)
    file = publishing.config_file()
    options = {**user.options(secured_broker.ca_file), "sasl.password": "${SNAPSHOT_PASSWORD}"}
    change_config(file, {"kafka": {"bootstrap_servers": secured_broker.servers, "options": options}})
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SNAPSHOT_PASSWORD", user.password)
        code, line = run("snapshot", "--config", str(file))
    assert code == (0 if name is None else 6), line
    if name is None:
        assert len(publishing.rows("users")) == 10
    else:
        assert f"; allow this user {operation} on topic {name}" in line


def test_snapshots_go_on_when_an_acl_that_was_taken_is_given_back(
    publishing: PublishingRig, secured_broker: SecuredBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A job with a trigger that may not, for a while, read or write a topic; each shape gets one snapshot."""
    topics = publishing.rig.topics
    user = secured_broker.create_user(acls_of("snapshot", topics))
    config = _config(publishing, secured_broker, user)
    names, remedies, stop, ended = ["first"], list[str](), Event(), list[str]()

    def work() -> None:
        while not stop.is_set():
            store = KafkaSnapshots(config)
            try:
                SnapshotLoop(store, config, stop, (), again=False).run()
            except FlushtrackerError as error:
                # As a supervisor that starts it again.
                ended.append(str(error))
                stop.wait(1)
            finally:
                store.close()

    _define(publishing, *names)
    worker = Thread(target=work)
    worker.start()
    try:
        wait_until(lambda: publishing.snapshot("first")[0], "the first snapshot", _LIMIT_S)
        for operation, role in documented_acls("snapshot"):
            if operation == "DESCRIBE_CONFIGS":
                continue
            remedies.append(f"; allow this user {operation} on topic {topics[role]}")
            secured_broker.take(user.name, (operation, topics[role]))
            names.append(f"after-{operation}-{role}".lower())
            _define(publishing, *names)
            wait_until(lambda: remedies[-1] in caplog.text + "".join(ended), remedies[-1], _LIMIT_S)
            secured_broker.allow(user.name, {(operation, topics[role])})
            wait_until(lambda: publishing.snapshot(names[-1])[0], f"the snapshot of {names[-1]}", _LIMIT_S)
        for name in names:
            assert len(publishing.rows(name)) == 10
    finally:
        stop.set()
        worker.join(_LIMIT_S)


def _config(publishing: PublishingRig, broker: SecuredBroker, user: User) -> PublishConfig:
    config = publishing.config(trigger="200 ms")
    options = SecretOptions(user.options(broker.ca_file) | {"topic.metadata.refresh.interval.ms": "500"})
    kafka = replace(config.kafka, bootstrap_servers=broker.servers, options=options, retry_timeout_ms=5_000)
    return replace(config, kafka=kafka)
