"""What keeps capture from starting, or stops it: each case gives one message that states what to do."""

from collections.abc import Callable

import pytest

from tests.support.capture_rig import INSERT_USER, CaptureRig


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP PUBLICATION shapes", "there is no publication shapes; CREATE PUBLICATION"),
        ("ALTER PUBLICATION shapes SET (publish = 'insert')", "does not publish every operation; ALTER PUBLICATION"),
        ("SELECT pg_drop_replication_slot('shapes')", "there is no replication slot shapes; --create creates it"),
        ("DROP TABLE users", "there is no table public.users in this database"),
        (
            "DROP PUBLICATION shapes; CREATE TABLE t (); CREATE PUBLICATION shapes FOR TABLE t",
            "table public.users has shapes, but is not in publication shapes; ALTER PUBLICATION",
        ),
    ],
)
def test_missing_prerequisite_is_reported_with_what_to_do(rig: CaptureRig, statement: str, message: str) -> None:
    """The error precedes any publishing."""
    rig.server.execute(statement)
    assert message in rig.start().failure()
    assert rig.fragments() == []


@pytest.mark.parametrize("recreated", [False, True])
def test_a_publication_dropped_while_running_stops_capture(rig: CaptureRig, recreated: bool) -> None:  # noqa: FBT001  a parameter of the test
    """The server silently skips everything that is written while there is no publication."""
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    rig.server.execute("DROP PUBLICATION shapes" + ("; CREATE PUBLICATION shapes FOR ALL TABLES" if recreated else ""))
    assert ("was dropped and recreated" if recreated else "there is no publication") in capture.failure()


def test_a_source_with_acks_and_without_a_registry_is_refused(
    rig: CaptureRig, topic_name: Callable[[str], str]
) -> None:
    """Without the registry's topic, it is unknown where the shapes start."""
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    rig.acknowledge_all()
    capture.stop()
    rig.settings["kafka"]["topics"] = {role: topic_name(role) for role in rig.settings["kafka"]["topics"]}
    rig.create_topics()
    assert "but no entry in the shape registry" in rig.start().failure()


def test_wrong_wal_level_and_missing_replication_privilege_are_reported(rig: CaptureRig) -> None:
    """These are the two settings that a new server lacks."""
    rig.server.execute("CREATE ROLE reader LOGIN")
    rig.settings["postgres"]["connection"]["user"] = "reader"
    assert "role reader may not read a slot; ALTER ROLE" in rig.start().failure()
    rig.settings["postgres"]["connection"]["user"] = "postgres"
    rig.server.execute("SELECT pg_drop_replication_slot('shapes')")
    rig.server.settings["wal_level"] = "replica"
    rig.server.restart()
    assert "wal_level is replica, not logical" in rig.start().failure()


def test_a_wrong_password_is_reported_but_not_shown(rig: CaptureRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read from the environment, and no message or log shows it; a plain-text password is refused."""
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
    rig.execute_and_wait(INSERT_USER)
    capture.stop()
    rig.settings["postgres"]["connection"]["password"] = "plain"  # noqa: S105  that is the test
    with pytest.raises(Exception, match="is in plain text"):
        assert rig.config
