"""What capture refuses to start on, or to go on with: each time one message that says what to do."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flushtracker.local.postgres import LocalPostgres
from tests.integration.conftest import Broker
from tests.support.capture_rig import CaptureRig, shape

USERS = "CREATE TABLE users (id serial PRIMARY KEY, region text)"
INSERT = "INSERT INTO users (region) VALUES ('eu')"


@pytest.fixture
def rig(
    postgres: LocalPostgres, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> Iterator[CaptureRig]:
    """Everything made, one shape on one table, nothing captured yet."""
    rig = CaptureRig(postgres, broker.bootstrap_servers, tmp_path, topic_name)
    rig.create()
    postgres.execute(USERS)
    rig.define(shape("users"))
    yield rig
    rig.close()


def captured(rig: CaptureRig, *statements: str) -> None:
    """Run statements and wait until all of them are published."""
    rig.wait_for_commits(rig.commit_lsn(*statements))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP PUBLICATION shapes", "there is no publication shapes; CREATE PUBLICATION"),
        ("ALTER PUBLICATION shapes SET (publish = 'insert')", "leaves out a kind of change; ALTER PUBLICATION"),
        ("SELECT pg_drop_replication_slot('shapes')", "there is no replication slot shapes; --create makes one"),
        ("DROP TABLE users", "there is no table public.users in this database"),
        (
            "DROP PUBLICATION shapes; CREATE TABLE t (); CREATE PUBLICATION shapes FOR TABLE t",
            "table public.users of a shape is not in publication shapes; ALTER PUBLICATION",
        ),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(rig: CaptureRig, statement: str, message: str) -> None:
    """Before anything is published."""
    rig.server.execute(statement)
    assert message in rig.start().failure()
    assert rig.fragments() == []


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_publication_dropped_while_running_stops_capture(rig: CaptureRig, made_anew: bool) -> None:  # noqa: FBT001  a parameter of the test
    """The server sends nothing of what is written without it, and says nothing of that."""
    capture = rig.start()
    captured(rig, INSERT)
    rig.server.execute("DROP PUBLICATION shapes" + ("; CREATE PUBLICATION shapes FOR ALL TABLES" if made_anew else ""))
    assert ("was dropped and made anew" if made_anew else "there is no publication") in capture.failure()


def test_a_source_with_acks_and_without_a_registry_is_refused(
    rig: CaptureRig, topic_name: Callable[[str], str]
) -> None:
    """Whoever lost the registry's topic does not know any more where its shapes start."""
    capture = rig.start()
    captured(rig, INSERT)
    rig.acknowledge_all()
    capture.stop()
    rig.settings["kafka"]["topics"] = {role: topic_name(role) for role in rig.settings["kafka"]["topics"]}
    rig.create_topics()
    assert "but the registry of shapes knows nothing of it" in rig.start().failure()


def test_a_server_without_logical_wal_and_a_role_without_the_right_are_named(rig: CaptureRig) -> None:
    """The two settings that a fresh server lacks."""
    rig.server.execute("CREATE ROLE reader LOGIN")
    rig.settings["postgres"]["connection"]["user"] = "reader"
    assert "role reader may not read a slot; ALTER ROLE" in rig.start().failure()
    rig.settings["postgres"]["connection"]["user"] = "postgres"
    rig.server.execute("SELECT pg_drop_replication_slot('shapes')")
    rig.server.settings["wal_level"] = "replica"
    rig.server.restart()
    assert "wal_level is replica, not logical" in rig.start().failure()


def test_a_wrong_password_is_said_without_it(rig: CaptureRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from the environment, and no message and no log shows it; in plain text it is refused."""
    rig.server.execute("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'right-secret'")
    hba = rig.server.data / "pg_hba.conf"
    hba.write_text("host all reader 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
    rig.server.execute("SELECT pg_reload_conf()")
    rig.settings["postgres"]["connection"] |= {"user": "reader", "password": "${TEST_PGPASSWORD}"}
    monkeypatch.setenv("TEST_PGPASSWORD", "wrong-secret")
    failure = rig.start().failure()
    assert "password authentication failed" in failure
    assert "wrong-secret" not in failure
    assert "wrong-secret" not in repr(rig.config)
    monkeypatch.setenv("TEST_PGPASSWORD", "right-secret")
    rig.define()
    capture = rig.start()
    captured(rig, INSERT)
    capture.stop()
    rig.settings["postgres"]["connection"]["password"] = "plain"  # noqa: S105  that is the test
    with pytest.raises(Exception, match="stands here in plain text"):
        assert rig.config
