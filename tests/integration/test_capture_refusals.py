"""What keeps capture from starting, or stops it: each case gives one message that states what to do."""

from collections.abc import Callable
from contextlib import closing
from time import sleep
from typing import Final
from unittest.mock import Mock

import pytest
import yaml

from flushtracker.postgres.slot import check_server
from tests.support.capture_rig import INSERT_USER, CaptureRig, shape
from tests.support.seeds import in_turn

_WITH_TWO_PHASE: Final = """
SELECT pg_drop_replication_slot('shapes'), pg_create_logical_replication_slot('shapes', 'pgoutput', false, true)
"""


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP PUBLICATION shapes", "there is no publication shapes; --create creates it"),
        ("ALTER PUBLICATION shapes SET (publish = 'insert')", "does not publish every operation; ALTER PUBLICATION"),
        ("SELECT pg_drop_replication_slot('shapes')", "there is no replication slot shapes; --create creates it"),
        (_WITH_TWO_PHASE, "slot shapes has two_phase enabled: the server would send prepared transactions before"),
    ],
)
def test_missing_prerequisite_is_reported_with_what_to_do(rig: CaptureRig, statement: str, message: str) -> None:
    """The error precedes any publishing."""
    rig.server.execute(statement)
    assert message in rig.start().failure()
    assert rig.fragments() == []


def test_a_missing_table_does_not_keep_capture_from_starting(rig: CaptureRig) -> None:
    """Its shapes are refused."""
    rig.server.execute("DROP TABLE users")
    assert "there is no table public.users in this database" in rig.refusal()


def test_a_publication_dropped_while_running_stops_capture(rig: CaptureRig) -> None:
    """The server silently skips everything that is written while there is no publication."""
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    rig.server.execute("DROP PUBLICATION shapes")
    assert "there is no publication" in capture.failure()


@pytest.mark.parametrize("down", in_turn([False, True]))
@pytest.mark.parametrize(
    "statements",
    [
        ["DROP PUBLICATION shapes", "CREATE PUBLICATION shapes FOR ALL TABLES"],
        [
            "ALTER PUBLICATION shapes SET (publish = 'insert')",
            "ALTER PUBLICATION shapes SET (publish = 'insert, update, delete, truncate')",
        ],
    ],
    ids=["recreated", "altered and altered back"],
)
def test_a_publication_that_may_have_left_something_out_ends_the_shapes(
    rig: CaptureRig,
    statements: list[str],
    down: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    """What was written in between was not sent and never will be; a new shape starts from there."""
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    if down:
        capture.stop()
    rig.server.execute("; ".join(statements))
    if down:
        capture = rig.start()
    rig.wait(lambda: rig.registry()["users"].removed_at is not None, "the end of the shape")
    rig.define(shape("users-again"))
    rig.wait(lambda: "users-again" in rig.registry(), "the new shape")
    rig.execute_and_wait(INSERT_USER)
    capture.stop()
    assert "the publication was altered or recreated" in (rig.registry()["users"].ended_because or "")
    assert rig.operations("users-again") == ["insert"]


def test_a_source_with_acks_and_without_a_registry_is_refused(
    rig: CaptureRig, topic_name: Callable[[str], str]
) -> None:
    """Without the registry's topic, it is unknown where the shapes start."""
    rig.capture_once(acknowledges=True)
    rig.settings["kafka"]["topic_prefix"] = topic_name("other")
    rig.create_topics()
    assert "but no entry in the shape registry" in rig.start().failure()


def test_wrong_wal_level_and_missing_replication_privilege_are_reported(rig: CaptureRig) -> None:
    """These are the two settings that a new server lacks."""
    rig.server.execute("CREATE ROLE reader LOGIN")
    rig.settings["postgres"]["user"] = "reader"
    assert "role reader may not read a slot; ALTER ROLE" in rig.start().failure()
    rig.settings["postgres"]["user"] = "postgres"
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
    rig.settings["postgres"] |= {"user": "reader", "password": "${TEST_PGPASSWORD}"}
    monkeypatch.setenv("TEST_PGPASSWORD", "wrong-secret")
    failure = rig.start().failure()
    assert "password authentication failed" in failure
    assert "wrong-secret" not in failure
    assert "wrong-secret" not in repr(rig.config)
    monkeypatch.setenv("TEST_PGPASSWORD", "right-secret")
    rig.define()
    rig.capture_once()
    rig.settings["postgres"]["password"] = "plain"  # noqa: S105  that is the test
    with pytest.raises(Exception, match="is in plain text"):
        assert rig.config


SHAPES = [shape("users"), *(shape(f"users-{region}", where=f"id > {region}") for region in range(3))]


def live(rig: CaptureRig) -> set[str]:
    return {shape_id for shape_id, entry in rig.registry().items() if entry.removed_at is None}


def test_a_shapes_file_that_is_written_in_two_steps_removes_nothing(rig: CaptureRig) -> None:
    """Half of the file removes half of the shapes at most, which is allowed, but it does not stay the same."""
    rig.settings["capture"]["intervals"]["shapes"] = "1 second"
    rig.define(*SHAPES)
    capture = rig.start()
    rig.wait(lambda: len(live(rig)) == len(SHAPES), "the shapes")
    with rig.shapes_file.open("w") as file:
        file.write(yaml.safe_dump({"shapes": SHAPES[:2]}))
        file.flush()
        # Longer than the interval, so that capture has looked at it.
        sleep(1.25)
        file.write(yaml.safe_dump([*SHAPES[2:], shape("late")]))
    rig.wait(lambda: "late" in live(rig), "the new shape")
    capture.stop()
    assert rig.removals() == {}
    assert live(rig) == {*(definition["id"] for definition in SHAPES), "late"}


def test_an_emptied_shapes_file_is_refused_while_running_and_at_a_start(
    rig: CaptureRig, caplog: pytest.LogCaptureFixture
) -> None:
    """While running, the shapes stay, and it is logged once. A start ends with exit 2; with the file back, it works."""
    rig.define(*SHAPES)
    capture = rig.start()
    rig.wait(lambda: len(live(rig)) == len(SHAPES), "the shapes")
    rig.define()
    refusal = (
        "the shapes file would remove 4 of the 4 live shapes, permanently: 'users', 'users-0', 'users-1' and 1 more"
    )
    rig.wait(lambda: refusal in caplog.text, "the refusal")
    rig.execute_and_wait(INSERT_USER)
    capture.stop()
    assert caplog.text.count("shapes not applied reason=") == 1
    process = rig.start_process()
    assert process.wait(60) == 2
    assert refusal in rig.log().splitlines()[-1]
    rig.define(*SHAPES)
    rig.capture_once()
    assert rig.removals() == {}
    assert len(rig.items("users")) == 2


def test_a_shapes_file_may_remove_as_many_shapes_as_it_says(rig: CaptureRig) -> None:
    """All of them, too."""
    rig.define(*SHAPES)
    capture = rig.start()
    rig.wait(lambda: len(live(rig)) == len(SHAPES), "the shapes")
    rig.define(allow_removing=len(SHAPES))
    rig.wait(lambda: len(rig.removals()) == len(SHAPES), "the removals")
    capture.stop()
    assert live(rig) == set()


@pytest.mark.parametrize(("version", "is_warned"), [(150012, True), (150013, False), (170004, True), (180000, False)])
def test_a_server_that_may_omit_changes_of_added_tables_is_warned_of(
    rig: CaptureRig, caplog: pytest.LogCaptureFixture, version: int, *, is_warned: bool
) -> None:
    """Such a server cannot be had here: its version is the only thing that is not real."""
    with closing(rig.server.connect()) as connection:
        older = Mock(wraps=connection, server_version=version)
        check_server(older)
    assert ("server may omit changes of a table" in caplog.text) is is_warned
