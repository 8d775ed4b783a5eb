"""The seal of an upgrade, and what the real pg_upgrade makes of the catalog, from PostgreSQL 17 to 18."""

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from flushtracker.capture.shapes.carried_entries import carried_entries
from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.capture.source.upgrade_drain import UpgradeDrain
from flushtracker.events.registry_events import PartitionEntry, TableEntry
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.postgres.slot import read_slot
from flushtracker.postgres.table_bindings import read_bindings
from flushtracker.postgres.upgrade_seal import UpgradeSeal, drop_seals, read_seal
from flushtracker.shapes.table_binding import TableBinding, reason_to_end
from tests.support.major_upgrade import old_server, upgraded
from tests.support.waiting import wait_until

_ID = "7301"
_TABLES = (
    "CREATE SCHEMA app",
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "ALTER TYPE mood ADD VALUE 'mad' BEFORE 'glad'",
    "CREATE TABLE users (id serial PRIMARY KEY, gone int, m mood, u int NOT NULL UNIQUE, n int NOT NULL)",
    "CREATE UNIQUE INDEX plain ON users (n)",
    "ALTER TABLE users DROP COLUMN gone",
    "ALTER TABLE users ADD COLUMN later int DEFAULT 7",
    "CREATE TABLE app.parts (id int PRIMARY KEY, t text) PARTITION BY RANGE (id)",
    "CREATE TABLE app.low PARTITION OF app.parts FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE high (id int PRIMARY KEY, t text)",
    "ALTER TABLE app.parts ATTACH PARTITION high FOR VALUES FROM (100) TO (200)",
    "CREATE TABLE plainly (id int PRIMARY KEY, t text)",
    "VACUUM FULL plainly",
    "CREATE PUBLICATION shapes FOR TABLE users, plainly, TABLES IN SCHEMA app",
    "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput', failover => true)",
)
_ADVANCE = "SELECT pg_replication_slot_advance('shapes', pg_current_wal_insert_lsn())"
_OIDS = "SELECT oid::bigint FROM pg_class WHERE relname IN ('users', 'parts', 'plainly')"


def bindings(server: LocalPostgres) -> dict[int, TableBinding]:
    with closing(server.connect()) as connection:
        return read_bindings(connection, "shapes", [oid for (oid,) in server.execute(_OIDS)])


def seal_of(server: LocalPostgres) -> UpgradeSeal | None:
    with closing(server.connect()) as connection:
        confirmed_lsn = read_slot(connection, "shapes").confirmed_lsn
        return read_seal(connection, "shapes", "shapes", system_id="9999", confirmed_lsn=confirmed_lsn)


def seal(server: LocalPostgres) -> str:
    """Seal the slot, once everything is confirmed, with a writer that is open at first; returns the seal's token."""
    checks: list[str] = []
    tokens: list[str] = []
    with closing(server.connect()) as connection, closing(server.connect()) as writer:
        drain = UpgradeDrain(connection, "shapes", _ID, lambda: checks.append("checked"), tokens.append)
        writer.autocommit = False
        with writer.cursor() as cursor:
            cursor.execute("INSERT INTO users (u, n) VALUES (1, 1)")
            server.execute(_ADVANCE)
            assert not drain.is_done(), "a transaction is open"
            writer.commit()
        assert not drain.is_done(), "its commit is not confirmed"
        assert checks == tokens == []
        wait_until(lambda: server.execute(_ADVANCE) and drain.is_done(), "the seal", 60)
        assert checks
    (token,) = tokens
    return token


def carried(server: LocalPostgres, before: dict[int, TableBinding], found: UpgradeSeal) -> dict[int, TableBinding]:
    """The bindings of before, carried over to the server."""
    tables = tuple(TableEntry("s", binding) for binding in before.values())
    partitions = tuple(
        PartitionEntry("s", oid, each, None) for oid, binding in before.items() for each in binding.partitions
    )
    with closing(server.connect()) as connection:
        server_tables = ServerTables(connection, "shapes", "shapes")
        entries = carried_entries(SourceEntries(None, (), tables, partitions), server_tables, found.is_carried)
    return {
        entry.binding.oid: replace(
            entry.binding,
            partitions=tuple(each.binding for each in entries.partitions if each.table_oid == entry.binding.oid),
        )
        for entry in entries.tables
    }


def test_pg_upgrade_brings_the_seal_and_what_bindings_know(servers: ExitStack, postgres_folder: Path) -> None:
    """Bindings that are carried over are those of the new catalog; what is altered there since is still found."""
    old = servers.enter_context(old_server(postgres_folder / "old"))
    old.execute(*_TABLES)
    before = bindings(old)
    token = seal(old)
    ((next_xid,),) = old.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    old.stop()
    new = servers.enter_context(upgraded(old, postgres_folder / "new"))
    found = seal_of(new)
    assert found is not None
    assert (found.system_id, found.token) == (_ID, token)
    assert (found.old_xid, found.misses_changes) == (next_xid, False)
    assert found.own_xid > found.old_xid
    assert bindings(new) != before
    assert carried(new, before, found) == bindings(new)
    new.execute("CREATE TABLE app.more PARTITION OF app.parts FOR VALUES FROM (200) TO (300)")
    now = bindings(new)
    assert all(reason_to_end(None, bound, now[oid]) is None for oid, bound in carried(new, before, found).items())
    new.execute(
        "ALTER TYPE mood RENAME VALUE 'mad' TO 'angry'",
        "ALTER TYPE mood RENAME VALUE 'angry' TO 'mad'",
        "ALTER TABLE app.parts DETACH PARTITION high",
        "ALTER TABLE app.parts ATTACH PARTITION high FOR VALUES FROM (100) TO (200)",
        "ALTER PUBLICATION shapes DROP TABLE plainly",
        "ALTER PUBLICATION shapes ADD TABLE plainly",
    )
    now = bindings(new)
    reasons = {
        now[oid].table[1]: reason_to_end(None, bound, now[oid]) for oid, bound in carried(new, before, found).items()
    }
    assert "label 'mad' of type public.mood was altered" in (reasons["users"] or "")
    assert "detached and attached again" in (reasons["parts"] or "")
    assert "was not in the publication for a time" in (reasons["plainly"] or "")
    new.execute("SELECT pg_drop_replication_slot('shapes')", "INSERT INTO users (u, n) VALUES (2, 2)")
    new.execute("SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')")
    later = seal_of(new)
    assert later is not None
    assert later.misses_changes
    with closing(new.connect()) as connection:
        drop_seals(connection, "shapes")
    assert seal_of(new) is None
