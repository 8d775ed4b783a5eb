"""The schema of changes, of tables on a real server: what it says is what the registry's entries say."""

from itertools import pairwise
from typing import Final

from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import parse_registry_entry
from flushtracker.serve.seen_shape import ShapeFacts
from flushtracker.shape_log.change_columns import read_changes
from flushtracker.shape_log.table.found_shape import FoundShape
from tests.support.capture_rig import CaptureRig, shape

_TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('ok')",
    "CREATE DOMAIN mail AS varchar(40)",
    "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
    "CREATE TYPE pair AS (a int, b int[])",
)
_TABLE: Final = (
    "CREATE TABLE t (id positive PRIMARY KEY, name varchar(10), price numeric(10, 2), mood mood, moods mood[], "
    "mails mail[], mail mail, pair pair, during int4range)"
)
_ALTERED: Final = (
    "ALTER TABLE t ADD note bit(3)",
    "ALTER TABLE t ALTER name TYPE varchar(20)",
    "ALTER TABLE t ALTER price TYPE numeric(12, 2)",
    "ALTER DOMAIN mail RENAME TO address",
    "ALTER DOMAIN address SET SCHEMA other",
)
_UNALTERED: Final = (
    "ALTER TABLE t ALTER name SET DEFAULT 'x'",
    "ALTER DOMAIN positive ADD CHECK (VALUE < 1000)",
    "CREATE UNIQUE INDEX ON t (name)",
)


def _last(rig: CaptureRig, shape_id: str) -> str | None:
    """The schema of the shape's last changes."""
    found = [read_changes(value) for value in rig.values("shape_changes")]
    return [each.schema for each in found if each.shape_id == shape_id][-1]


def _registered(rig: CaptureRig, shape_id: str) -> str | None:
    """The schema of the shape, by the registry."""
    registry = Registry.of(map(parse_registry_entry, rig.values("shapes")))
    entry = registry.shape(rig.source(), shape_id)
    assert entry is not None
    assert entry.removed_at is None, entry.ended_because
    found = FoundShape(1, rig.source(), shape_id, None, None, entry, registry.table_of(entry))
    return ShapeFacts.of(found, "table").schema_digest


def test_schema_of_changes_is_that_of_the_registry(rig: CaptureRig) -> None:
    """After each change that a client could see, which a shape survives; and after a restart of capture."""
    rig.server.execute("CREATE SCHEMA other", *_TYPES, _TABLE, "CREATE TABLE u (id int PRIMARY KEY)")
    rig.define(
        shape("all", "public.t"),
        shape("names", "public.t", columns=["id", "name"]),
        shape("joined", "public.t", where="price IN (SELECT id FROM public.u)"),
    )
    capture = rig.start()
    number = 0

    def insert() -> None:
        nonlocal number
        number += 1
        rig.execute_and_wait(f"INSERT INTO t (id, name, price, mood) VALUES ({number}, 'n{number}', 1, 'ok')")  # noqa: S608  ours

    insert()
    schemas = [_registered(rig, "all")]
    names = _registered(rig, "names")
    assert [_last(rig, shape_id) for shape_id in ("all", "names")] == [*schemas, names]
    for statement in _ALTERED:
        rig.server.execute(statement)
        if "TABLE" in statement:
            insert()
        rig.wait(lambda: _registered(rig, "all") != schemas[-1], f"the binding after {statement}")
        insert()
        schemas.append(_registered(rig, "all"))
        assert _last(rig, "all") == schemas[-1], statement
    rig.execute_and_wait("ALTER TYPE mood ADD VALUE 'sad'", "INSERT INTO t (id, mood) VALUES (900, 'sad')")
    schemas.append(_registered(rig, "all"))
    assert _last(rig, "all") == schemas[-1]
    assert all(before != after for before, after in pairwise(schemas))
    assert names != _registered(rig, "names") == _last(rig, "names")
    for statement in _UNALTERED:
        rig.server.execute(statement)
        insert()
        assert (_last(rig, "all"), _registered(rig, "all")) == (schemas[-1], schemas[-1]), statement
    rig.execute_and_wait("INSERT INTO u VALUES (1)")
    assert (_last(rig, "joined"), _registered(rig, "joined")) == (None, None)
    capture.stop()
    rig.start()
    insert()
    assert _last(rig, "all") == schemas[-1]
