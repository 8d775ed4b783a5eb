"""Tables that were published only after the server's stream had seen changes of them.

A session of the server decides for each table once whether it is published. Before PostgreSQL 15 it does not look again
when the table becomes a partition of a published one; and no version does for the partitions of a table that is moved
into a published schema. From then on, it sends none of their changes.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from flushtracker.events.registry_events import PartitionEntry, parse_registry_entry
from tests.support.capture_rig import CaptureRig, RigOn, run_in_transaction, shape
from tests.support.new_server import new_server
from tests.support.server_versions import binaries_of, runs_here

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")

_ROOT: Final = "CREATE TABLE {} (id int PRIMARY KEY) PARTITION BY RANGE (id)"
_ATTACH: Final = "ALTER TABLE r ATTACH PARTITION p FOR VALUES FROM (0) TO (100)"


@pytest.fixture
def rig_of(postgres_folder: Path, servers: ExitStack, rig_on: RigOn) -> Callable[[int], CaptureRig]:
    """Starts a server of a version, with topics, and a publication without tables."""

    def start(version: int) -> CaptureRig:
        rig = rig_on(servers.enter_context(new_server(postgres_folder / "server", binaries_of(version))))
        rig.create_topics()
        return rig

    return start


def _capture(rig: CaptureRig, publication: str, *tables: str) -> None:
    """Start capture, with a shape on ``other``, which it publishes along with what ``publication`` has."""
    rig.server.execute(
        *tables,
        "CREATE TABLE other (id int PRIMARY KEY)",
        f"CREATE PUBLICATION shapes FOR {publication}",
        "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
    )
    rig.define(shape("other", "public.other"))
    rig.start()
    rig.wait(lambda: "other" in rig.registry(), "the first shape")


def _confirm_all(rig: CaptureRig) -> None:
    """Let the slot pass all transactions so far, as far as the server has noted which of them are open."""
    rig.execute_and_wait("CHECKPOINT", "INSERT INTO other SELECT coalesce(max(id), 0) + 1 FROM other")
    rig.acknowledge_all()


def _is_added(rig: CaptureRig, shape_id: str) -> bool:
    if shape_id in rig.registry():
        return True
    _confirm_all(rig)
    return False


def _has_entry(rig: CaptureRig, partition: str) -> bool:
    entries = map(parse_registry_entry, rig.values("shapes"))
    return any(isinstance(entry, PartitionEntry) and entry.binding.table[1] == partition for entry in entries)


@pytest.mark.parametrize(
    ("version", "publication", "tables", "change", "table"),
    [
        (14, "TABLE r, other", (_ROOT.format("r"), "CREATE TABLE p (id int PRIMARY KEY)"), _ATTACH, "public.r"),
        (14, "TABLE r, other", (_ROOT.format("r"), "CREATE TABLE p (id int PRIMARY KEY)"), _ATTACH, "public.p"),
        (
            18,
            "TABLE other, TABLES IN SCHEMA later",
            (
                "CREATE SCHEMA later",
                _ROOT.format("r"),
                "CREATE TABLE p PARTITION OF r FOR VALUES FROM (0) TO (100)",
            ),
            "ALTER TABLE r SET SCHEMA later",
            "later.r",
        ),
    ],
)
def test_shape_gets_all_changes_of_a_partition_that_was_published_later(
    rig_of: Callable[[int], CaptureRig],
    version: int,
    publication: str,
    tables: tuple[str, ...],
    change: str,
    table: str,
) -> None:
    """It waits for a connection that sends them."""
    rig = rig_of(version)
    _capture(rig, publication, *tables)
    rig.execute_and_wait("INSERT INTO p VALUES (1)", change)
    rig.define(shape("other", "public.other"), shape("later", table))
    rig.wait(lambda: _is_added(rig, "later"), "the shape")
    rig.execute_and_wait("INSERT INTO p VALUES (2)")
    rig.wait(lambda: rig.operations("later") == ["insert"], "the row")


def test_shape_ends_when_an_emptied_table_becomes_a_partition_and_its_changes_may_not_be_sent(
    rig_of: Callable[[int], CaptureRig],
) -> None:
    """A table that never had rows may become one: the stream cannot have seen it."""
    rig = rig_of(14)
    _capture(rig, "TABLE r, other", _ROOT.format("r"), *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "pq"))
    rig.define(shape("other", "public.other"), shape("all", "public.r"))
    rig.wait(lambda: "all" in rig.registry(), "the shape")
    rig.server.execute("ALTER TABLE r ATTACH PARTITION q FOR VALUES FROM (100) TO (200)")
    rig.wait(lambda: _has_entry(rig, "q"), "the partition")
    rig.execute_and_wait("INSERT INTO r VALUES (101)")
    rig.wait(lambda: rig.operations("all") == ["insert"], "the row")
    rig.execute_and_wait("INSERT INTO p VALUES (1)", "TRUNCATE p")
    run_in_transaction(rig.server, [_ATTACH])
    rig.wait(lambda: rig.registry()["all"].removed_at is not None, "the end of the shape")
    assert "may have had rows" in (rig.registry()["all"].ended_because or "")
