"""Fixtures of a broker and a server that demand TLS, passwords and privileges; they serve the whole run."""

import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Timer
from typing import Final, TypeAlias

import pytest

from flushtracker.cli import main
from tests.support.capture_rig import INSERT_USER, USERS, CaptureRig, shape
from tests.support.documented_acls import documented_role
from tests.support.kafka_job import KafkaJob
from tests.support.sample_source import SampleSource
from tests.support.secured_broker import Acl, SecuredBroker
from tests.support.secured_capture import PASSWORD, WRONG_PASSWORD, CaptureSettings
from tests.support.secured_postgres import SecuredPostgres

LIMIT_S: Final = 30
"""No program may take longer to end with an error that no retry can fix; ``retry_timeout`` is twice as long."""
OLD_SHAPES: Final = 12
"""How many shapes the rig has registered for tests to remove: ``old-0`` and so on."""

SettingsOf: TypeAlias = Callable[[set[Acl]], CaptureSettings]
Run: TypeAlias = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(scope="session")
def secured_server() -> Iterator[SecuredPostgres]:
    """With capture's role as docs/security.md says, and nothing for PUBLIC."""
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        server = SecuredPostgres(Path(name) / "server")
        with server:
            server.execute("REVOKE ALL ON DATABASE postgres FROM PUBLIC", "REVOKE ALL ON SCHEMA public FROM PUBLIC")
            server.execute(*documented_role(PASSWORD))
            yield server


@pytest.fixture(scope="session")
def secured_rig(
    secured_broker: SecuredBroker, secured_server: SecuredPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CaptureRig]:
    """Topics and a slot that capture has used: shapes are registered, and changes are unconfirmed."""
    folder = tmp_path_factory.mktemp("rig")
    rig = CaptureRig(
        secured_server, secured_broker.open_servers, folder, lambda role: f"{role}-{uuid.uuid4().hex[:12]}"
    )
    rig.create_topics()
    secured_server.execute(
        USERS,
        "CREATE TABLE events (id int, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day)",
        "CREATE TABLE events_1 PARTITION OF events FOR VALUES IN (1)",
        "CREATE PUBLICATION shapes FOR TABLE users, events",
        "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
    )
    define_shapes(rig, [f"old-{number}" for number in range(OLD_SHAPES)])
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    capture.stop()
    yield rig
    rig.close()


def remove_old_shape(rig: CaptureRig) -> None:
    """Take one of the shapes to remove out of the rig's, whichever tests have run before."""
    live = [name for name, entry in rig.registry().items() if name.startswith("old-") and entry.removed_at is None]
    define_shapes(rig, sorted(live)[1:])


def define_shapes(rig: CaptureRig, old: Iterable[str]) -> None:
    """Define the rig's shapes, and these of those to remove."""
    shapes = [shape("users"), shape("events", "public.events"), *map(shape, old)]
    rig.define(*shapes, allow_removing=OLD_SHAPES)


@pytest.fixture
def settings_of(secured_rig: CaptureRig, secured_broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> SettingsOf:
    """Returns capture's settings for a new user with these ACLs."""
    monkeypatch.setenv("CAPTURE_PASSWORD", PASSWORD)
    monkeypatch.setenv("WRONG_PASSWORD", WRONG_PASSWORD)
    return lambda acls: CaptureSettings(secured_rig, secured_broker, secured_broker.create_user(acls))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a program that must end by itself, within seconds; returns its exit code and its last line, if any."""

    def run_program(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        begin = time.monotonic()
        timer = Timer(LIMIT_S, lambda: os.kill(os.getpid(), signal.SIGTERM))
        timer.start()
        try:
            code = main([*arguments, "--verbose"])
        finally:
            timer.cancel()
        assert time.monotonic() - begin < LIMIT_S
        output = capsys.readouterr().err
        assert "secret-" not in output
        return code, (output.splitlines() or [""])[-1]

    return run_program


@pytest.fixture(scope="session")
def secured_job(secured_broker: SecuredBroker, tmp_path_factory: pytest.TempPathFactory) -> KafkaJob:
    """Topics with one transaction, its flush, and a notification that becomes a dead letter."""
    job = KafkaJob(tmp_path_factory.mktemp("job"), secured_broker.open_servers)
    source = SampleSource()
    job.write([source.transaction(2000, "users"), source.flushed("users", 2000)], ["no notification"])
    return job
