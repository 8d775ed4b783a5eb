"""Partitions that a real server drops and detaches while capture runs, and while it is down."""

from contextlib import closing
from typing import Final

import pytest

from flushtracker.errors import PostgresError
from flushtracker.postgres.connection import rows
from tests.support.capture_rig import CaptureRig, RunningCapture, shape
from tests.support.seeds import in_turn
from tests.support.shape_outcome import outcome

_CREATE: Final = (
    "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE t_a PARTITION OF t FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE t_b PARTITION OF t FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE t_s PARTITION OF t FOR VALUES FROM (20) TO (40) PARTITION BY RANGE (id)",
    "CREATE TABLE t_s1 PARTITION OF t_s FOR VALUES FROM (20) TO (30)",
    "CREATE TABLE t_s2 PARTITION OF t_s FOR VALUES FROM (30) TO (40)",
    "CREATE TABLE t_rest PARTITION OF t DEFAULT",
    "CREATE TABLE other (id int PRIMARY KEY)",
)
_TABLES: Final = {"t": "t", "late": "t", "sub": "t_s", "leaf": "t_s1"}
_WHERE: Final = {"late": "id >= 15"}


class Rotation:
    """Shapes on the root, one with a condition, on a sub-root and on a leaf."""

    def __init__(self, rig: CaptureRig) -> None:
        self.rig = rig
        rig.server.execute(*_CREATE)
        rig.define(
            *(
                shape(name, f"public.{table}", **({"where": _WHERE[name]} if name in _WHERE else {}))
                for name, table in _TABLES.items()
            )
        )
        self.capture: RunningCapture = rig.start()
        rig.wait(lambda: len(rig.registry()) == len(_TABLES), "all shapes")
        rig.execute_and_wait("INSERT INTO t SELECT i, 'first' FROM generate_series(1, 50, 3) i")

    def equal(self) -> bool:
        """Whether each shape has the rows of its query; none has ended."""
        found = {name: outcome(self.rig, name, None, table, _WHERE.get(name)) for name, table in _TABLES.items()}
        assert [each.ended for each in found.values()] == [None] * len(found)
        return all(each.fold == each.query for each in found.values())

    def play(self, *statements: str, down: bool) -> None:
        """Execute the statements, while capture runs or is down, and wait until all shapes are equal to their queries.

        Nothing else is changed: capture itself must notice it.
        """
        if down:
            self.capture.stop()
        for statement in statements:
            self.rig.server.execute(statement)
        if down:
            self.capture = self.rig.start()
        self.rig.wait(self.equal, f"shapes equal to their queries after {statements}")

    def restart(self) -> None:
        self.capture.stop()
        self.capture = self.rig.start()


@pytest.fixture
def rotation(rig: CaptureRig) -> Rotation:
    return Rotation(rig)


_INSERT: Final = "INSERT INTO t SELECT i, 'again' FROM generate_series(2, 60, 5) i ON CONFLICT DO NOTHING"


@pytest.mark.parametrize("down", in_turn([False, True]))
def test_shapes_follow_rotating_partitions(rotation: Rotation, *, down: bool) -> None:
    """Those of the root and of the sub-root each lose what has left them, and only that."""
    rotation.play("DROP TABLE t_a", down=down)
    rotation.play("CREATE TABLE t_a PARTITION OF t FOR VALUES FROM (0) TO (10)", _INSERT, "DROP TABLE t_b", down=down)
    rotation.play("ALTER TABLE t DETACH PARTITION t_a", "UPDATE t_a SET v = 'stale'", _INSERT, down=down)
    # The rows of the sub-root's leaves leave the root, but not the sub-root.
    rotation.play("ALTER TABLE t DETACH PARTITION t_s", "INSERT INTO t_s VALUES (39, 's')", _INSERT, down=down)
    rotation.play("ALTER TABLE t_s DETACH PARTITION t_s1", "INSERT INTO t_s1 VALUES (29, 's')", down=down)
    rotation.play("TRUNCATE t_rest", _INSERT, "DROP TABLE t_s2", down=down)
    emptied = [item for item in rotation.rig.items("t") if item.operation == "truncate_partition"]
    rotation.restart()
    rotation.play(_INSERT, down=False)
    assert [item for item in rotation.rig.items("t") if item.operation == "truncate_partition"] == emptied
    assert len(emptied) == 6
    assert [item.operation for item in rotation.rig.items("leaf")].count("truncate") == 0


def test_shapes_lose_a_partition_that_is_detached_concurrently(rotation: Rotation) -> None:
    """Queries no longer see its rows as soon as that is pending, even if it never ends."""
    server = rotation.rig.server
    # With a default partition, none can be detached concurrently.
    rotation.play("DROP TABLE t_rest", down=False)
    with closing(server.connect()) as blocker, closing(server.connect()) as session:
        rows(blocker, "BEGIN")
        rows(blocker, "SELECT * FROM t WHERE id = 11")
        rows(session, "SET statement_timeout = '2s'")
        with pytest.raises(PostgresError, match="timeout"):
            rows(session, "ALTER TABLE t DETACH PARTITION t_a CONCURRENTLY")
    rotation.rig.wait(rotation.equal, "shapes without the partition")
    assert not any(row[0] < 10 for row in server.execute("SELECT id FROM t"))
    rotation.play("ALTER TABLE t DETACH PARTITION t_a FINALIZE", "UPDATE t SET v = 'x'", down=False)
