"""Blue and green: a schema is renamed, and another one takes its name, with another table of the same name.

PostgreSQL describes a table again after it was renamed itself, but before PostgreSQL 18 not after its schema was: until
the next connection, it sends the rows of the old table under the name of the new one.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from flushtracker.local.postgres import system_binaries
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig, run_in_transaction, shape
from tests.support.kept_server import KeptServer
from tests.support.seeds import in_turn

_TABLE: Final = "CREATE TABLE app.t (id int PRIMARY KEY, v text)"
_ROOT: Final = "CREATE TABLE app.t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)"
_LEAF: Final = "CREATE TABLE app.t_a PARTITION OF app.t FOR VALUES FROM (0) TO (1000)"


@pytest.fixture(scope="module", params=["packaged", "system"])
def kept(request: pytest.FixtureRequest) -> Iterator[KeptServer]:
    """A server of each installed version."""
    with closing(KeptServer(system_binaries() if request.param == "system" else None)) as kept:
        yield kept


@pytest.fixture
def rig(kept: KeptServer, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]) -> Iterator[CaptureRig]:
    """Topics, a publication and a slot."""
    rig = CaptureRig(kept.take(), broker.bootstrap_servers, tmp_path, topic_name)
    rig.create()
    yield rig
    rig.close()
    kept.give_back()


def values(rig: CaptureRig, shape_id: str) -> list[str | None]:
    """What the shape's log inserts, in order."""
    return [item.value["v"] for item in rig.items(shape_id) if item.value is not None]


def insert(table: str, key: int, value: str) -> str:
    return f"INSERT INTO {table} VALUES ({key}, '{value}')"  # noqa: S608  the test's own names


@pytest.mark.parametrize("create", [(_TABLE,), (_ROOT, _LEAF)], ids=["table", "partitions"])
@pytest.mark.parametrize("down", in_turn([False, True]))
def test_tables_that_exchange_their_schema_keep_their_shapes_apart(
    rig: CaptureRig, create: tuple[str, ...], *, down: bool
) -> None:
    """No row reaches the shape on the other table, in the order of the stream, and again after it was sent again."""
    rig.server.execute("CREATE SCHEMA app", *create)
    rig.define(shape("blue", "app.t", snapshot=False))
    capture = rig.start()
    rig.wait(lambda: "blue" in rig.registry(), "the first shape")
    rig.execute_and_wait(insert("app.t", 1, "blue 1"))
    if down:
        capture.stop()
    exchange = ["ALTER SCHEMA app RENAME TO old", "CREATE SCHEMA app", *create]
    run_in_transaction(rig.server, [*exchange, insert("app.t", 1, "green 0"), insert("old.t", 2, "blue 2")])
    rig.define(shape("blue", "app.t", snapshot=False), shape("green", "app.t", snapshot=False))
    if down:
        capture = rig.start()
    rig.wait(lambda: "green" in rig.registry() and rig.registry()["blue"].removed_at, "the exchange of the shapes")
    assert "renamed to old.t" in (rig.registry()["blue"].ended_because or "")
    rig.execute_and_wait(
        insert("old.t", 3, "blue 3"), insert("app.t", 3, "green 3"), insert("old.t", 4, "blue 4"), "TRUNCATE old.t"
    )
    rig.wait(lambda: values(rig, "green") == ["green 3"], "the rows of the second shape")
    capture.stop()
    # Nothing was acknowledged, so all of it is sent again.
    rig.capture_once(insert("old.t", 5, "blue 5"), insert("app.t", 5, "green 5"))
    assert values(rig, "green") == ["green 3", "green 5"]
    assert rig.operations("green") == ["insert", "insert"]
    assert values(rig, "blue") in (["blue 1"], ["blue 1", "blue 2"])
    assert rig.registry()["green"].removed_at is None


def test_a_renamed_table_keeps_its_rows_from_the_one_that_took_its_name(rig: CaptureRig) -> None:
    """Within one transaction, before capture can look: each row reaches the shape on its own table, or none."""
    rig.server.execute("CREATE SCHEMA app", _TABLE)
    rig.define(shape("blue", "app.t", snapshot=False))
    capture = rig.start()
    rig.wait(lambda: "blue" in rig.registry(), "the shape")
    rename = ["ALTER TABLE app.t RENAME TO u", _TABLE]
    statements = [insert("app.t", 1, "blue 1"), *rename, insert("app.t", 1, "green 1"), insert("app.u", 2, "blue 2")]
    run_in_transaction(rig.server, statements)
    rig.wait(lambda: rig.registry()["blue"].removed_at is not None, "the end of the shape")
    rig.execute_and_wait(insert("app.t", 3, "green 3"))
    capture.stop()
    assert "renamed" in (rig.registry()["blue"].ended_because or "")
    assert all(value and value.startswith("blue") for value in values(rig, "blue"))
