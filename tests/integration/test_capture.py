"""Capture on a real server and the real broker: what its events say, whatever happens to tables and shapes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flushtracker.local.postgres import LocalPostgres
from tests.integration.capture_rig import CaptureRig, run_in_transaction, shape, wait_until
from tests.integration.conftest import Broker

USERS = "CREATE TABLE users (id bigint PRIMARY KEY, region text, bio text)"


@pytest.fixture
def rig(
    postgres: LocalPostgres, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> Iterator[CaptureRig]:
    """Everything made, nothing captured yet."""
    rig = CaptureRig(postgres, broker.bootstrap_servers, tmp_path, topic_name)
    rig.create()
    yield rig
    rig.close()


def test_a_transaction_reaches_the_shapes_it_concerns(rig: CaptureRig) -> None:
    """The fragments name every shape of a transaction, also one that touches none; a writer finds its rows."""
    rig.server.execute(USERS, "ALTER TABLE users REPLICA IDENTITY FULL")
    rig.define(shape("users"), shape("users-eu", where="region = 'eu'"))
    capture = rig.start()
    run_in_transaction(
        rig.server, ["INSERT INTO users VALUES (1, 'eu', 'a')", "INSERT INTO users VALUES (2, 'us', 'b')"]
    )
    lsn = rig.commit_lsn("CREATE TABLE other (id int)", "INSERT INTO other VALUES (1)")
    rig.wait_for_commits(lsn)
    capture.stop()
    first = next(event for event in rig.fragments() if event.xid is not None)
    assert {part.shape_id: part.change_count for part in first.shapes} == {"users": 2, "users-eu": 1}
    assert [item.value for item in rig.items("users-eu")] == [{"id": "1", "region": "eu", "bio": "a"}]
