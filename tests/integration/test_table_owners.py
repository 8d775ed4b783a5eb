"""What the owner of one table does with it ends at most the shapes of that table: capture goes on for the others."""

from contextlib import closing

import pytest

from flushtracker.postgres import server_tables
from flushtracker.postgres.connection import rows
from flushtracker.shapes.type_binding import MOST_LEVELS
from tests.support.capture_rig import INSERT_USER, CaptureRig, shape

LEVELS = 30
"""With two ways down at each level, there are a billion ways to the last one."""


def test_tables_that_inherit_from_several_do_not_stop_capture(rig: CaptureRig) -> None:
    """The catalog's queries followed each way from a table to its children, and were canceled at each start."""
    rig.server.execute("CREATE TABLE t0 (id int PRIMARY KEY)", "CREATE TABLE parted (id int) PARTITION BY LIST (id)")
    rig.define(shape("users"), shape("t0", "public.t0"))
    rig.capture_once()
    with closing(rig.server.connect()) as owner:
        for level in range(LEVELS):
            rows(owner, f"CREATE TABLE a{level} () INHERITS (t{level}); CREATE TABLE b{level} () INHERITS (t{level})")
            rows(owner, f"CREATE TABLE t{level + 1} () INHERITS (a{level}, b{level})")
        rows(owner, f"ALTER TABLE t{LEVELS} ADD PRIMARY KEY (id)")
    rig.capture_once(f"TRUNCATE t{LEVELS}", INSERT_USER)
    assert rig.operations("users") == ["insert", "insert"]
    assert "inheritance" in (rig.registry()["t0"].ended_because or "")
    # A new shape reads other parts of the catalog.
    rig.define(shape("users"), shape("t0", "public.t0"), shape("bottom", f"public.t{LEVELS}"))
    rig.capture_once()
    assert rig.registry()["bottom"].removed_at is None


def test_a_table_with_more_types_than_can_be_recorded_ends_its_shapes_only(rig: CaptureRig) -> None:
    """No topic took its entry in the registry, so capture ended at each start."""
    rig.settings["kafka"]["max_event_bytes"] = 1_000_000
    labels = ", ".join(f"'{number:063}'" for number in range(15_000))
    rig.server.execute(f"CREATE TYPE large AS ENUM ({labels})", "CREATE TABLE altered (id int PRIMARY KEY)")
    rig.define(shape("users"), shape("altered", "public.altered"))
    rig.capture_once()
    rig.capture_once("ALTER TABLE altered ADD COLUMN v large", "INSERT INTO altered VALUES (1)", INSERT_USER)
    rig.capture_once()
    assert rig.operations("users") == ["insert"] * 3
    assert "the description of table public.altered is an event of" in (rig.registry()["altered"].ended_because or "")


def test_a_type_of_very_many_levels_ends_the_shapes_of_its_table_only(rig: CaptureRig) -> None:
    """Each level took a query whenever the catalog was compared: 1,200 took seconds, again and again."""
    rig.server.execute("CREATE TABLE nested (id int PRIMARY KEY)", "CREATE DOMAIN d0 AS text")
    rig.define(shape("users"), shape("nested", "public.nested"))
    rig.capture_once()
    rig.server.execute(*(f"CREATE DOMAIN d{level + 1} AS d{level}" for level in range(MOST_LEVELS)))
    rig.server.execute(f"ALTER TABLE nested ADD COLUMN v d{MOST_LEVELS}")
    rig.define(shape("users"), shape("nested", "public.nested"), shape("later", "public.nested"))
    rig.capture_once()
    assert rig.operations("users") == ["insert", "insert"]
    reason = "table public.nested has a type that is nested in more than 100 levels"
    assert rig.registry()["nested"].ended_because == reason
    assert rig.registry().keys() == {"users", "nested"}


def test_partitions_that_are_kept_locked_are_waited_for_once(
    rig: CaptureRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first that may have rows ends the table's shapes; capture waited ten seconds for each of the others."""
    monkeypatch.setattr(server_tables, "LOCK_TIMEOUT_S", 0.3)
    numbers = range(5)
    names = ", ".join(f"part{number}" for number in numbers)
    rig.server.execute("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY LIST (id)")
    for number in numbers:
        rig.server.execute(
            f"CREATE TABLE part{number} AS SELECT {number} AS id", f"ALTER TABLE part{number} ADD PRIMARY KEY (id)"
        )
    rig.define(shape("users"), shape("parted", "public.parted"))
    rig.capture_once()
    with closing(rig.server.connect()) as owner:
        for number in numbers:
            rows(owner, f"ALTER TABLE parted ATTACH PARTITION part{number} FOR VALUES IN ({number})")
        rows(owner, "BEGIN")
        rows(owner, f"LOCK TABLE {names}")
        rig.capture_once()
    assert rig.operations("users") == ["insert", "insert"]
    assert "may have had rows" in (rig.registry()["parted"].ended_because or "")
    assert caplog.text.count("new partition is locked") == 1
