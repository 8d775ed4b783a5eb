"""Conditions that a server cannot evaluate for some rows: the snapshot takes what the stream takes."""

from typing import Final

import pytest

from flushtracker.errors import DecodeError, FlushtrackerError, PostgresError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shape_log.snapshot.due_shapes import DueShapes, due_shapes
from flushtracker.shape_log.snapshot.read_ranges import RangeError, range_failures
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from tests.support.snapshots_by_hand import resolved, snapshot_of, streamed_fragments

TABLE: Final = ("public", "t")
INSERT: Final = """INSERT INTO t VALUES
(1, -2147483648, -32768, -9223372036854775808, 1), (2, 2147483647, 32767, 9223372036854775807, -1),
(3, 1, 1, 1, 1), (4, NULL, NULL, NULL, NULL), (5, -1, -1, -1, 2.5)
"""
OVERFLOW: Final = (
    *("-i4 = 1", "-i4 = 2147483648", "i4 + 1 > 2147483647", "i4 * i4 > 2", "-i2 = 1", "i2 + i2 < 0"),
    *("i8 - 1 < 0", "-i8 > 0 OR i4 = 1", "i4 / -1 > 0"),
    # The server evaluates the operand that costs it less first, and so divides by zero.
    "i4 + 1 - 1 + 1 - 1 <> 1 AND 10 / (i4 - 1) < 0",
)
GO_ON: Final = (*OVERFLOW, "0.0 - i4 = 1", "i4 % 8 = 1", "i8 / 8 = 0", "i4 = 1")
END: Final = ("10 / (i4 - 1) < 0", "n % (i8 - 1) = 0", "1 / (n + 1) = 0")
"""Those without an outcome for a row."""


@pytest.fixture
def due(postgres: LocalPostgres) -> DueShapes:
    """A table with the rows, all of which a slot has, too, and a shape for each condition."""
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, i4 int, i2 int2, i8 int8, n numeric)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION shapes FOR TABLE t",
        "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
        INSERT,
    )
    definitions = [ShapeDefinition(where, TABLE, where=where) for where in (*GO_ON, *END)]
    entries = resolved(postgres, definitions)
    source = next(entry.source for entry in entries if isinstance(entry, ShapeEntry))
    return due_shapes(Registry.of(entries), {}, source.rpartition("/")[0])


def streamed(postgres: LocalPostgres, due: DueShapes) -> dict[str, set[str | None] | FlushtrackerError]:
    """The keys that the stream has of each shape, or the error that ends it."""
    fragments = list(streamed_fragments(postgres))
    found: dict[str, set[str | None] | FlushtrackerError] = {}
    (group,) = due.tables
    for entry in group.shapes:
        router = EventRouter(by_oid=True)
        router.add_shape(entry.definition, 1, entry.table_oid)
        try:
            parts = [part for fragment in fragments for part in router.route(fragment)]
            found[entry.definition.id] = {item.key for part in parts for item in part.items}
        except DecodeError as error:
            found[entry.definition.id] = error
    return found


def test_snapshot_has_the_rows_that_the_stream_has(postgres: LocalPostgres, due: DueShapes) -> None:
    """Also of rows for which the server has an error: in one pass with conditions that it evaluates."""
    for where in OVERFLOW:
        with pytest.raises(PostgresError, match=r"SQLSTATE 220(03|12)"):
            postgres.execute(f"SELECT FROM t WHERE {where}")
    (group,) = due.tables
    snapshot = snapshot_of(postgres, group.without(END.__contains__))
    stream = streamed(postgres, due)
    assert {where: {item[1] for item in snapshot[where]} for where in GO_ON} == {
        where: stream[where] for where in GO_ON
    }
    assert all(snapshot[where] for where in GO_ON)


def test_a_row_without_an_outcome_fails_the_shapes_that_it_ends_in_the_stream(
    postgres: LocalPostgres, due: DueShapes
) -> None:
    """And only these, each with the reason that the stream has."""
    (group,) = due.tables
    with pytest.raises(RangeError) as raised:
        snapshot_of(postgres, group)
    failures, stream = range_failures(str(raised.value)), streamed(postgres, due)
    assert failures.keys() == set(END)
    for where in END:
        assert str(failures[where]) in str(stream[where])
        assert "a division by zero" in str(failures[where])
