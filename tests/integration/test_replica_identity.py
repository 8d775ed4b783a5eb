"""Which tables a publication breaks: random tables on real servers, with PostgreSQL's own refusal as the oracle."""

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest

from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.identity_remedies import Remedy
from flushtracker.postgres.replica_identity import tables_without_identity, without_identity
from tests.support.new_server import running_server
from tests.support.server_versions import binaries_of, runs_here

TABLES: Final = 60
_KEYS: Final = (
    *("", "PRIMARY KEY (id)", "PRIMARY KEY (id) DEFERRABLE", "PRIMARY KEY (id) INCLUDE (g)"),
    *("PRIMARY KEY (id, g)", "UNIQUE (id)", "UNIQUE (n)", "UNIQUE (n, id)", "UNIQUE (id) DEFERRABLE"),
    *("UNIQUE (id), UNIQUE (n, id)", "UNIQUE (id, g)"),
)
_GENERATED: Final = ("g int NOT NULL DEFAULT 1", "g int NOT NULL GENERATED ALWAYS AS (1) STORED")
_VIRTUAL: Final = "g int NOT NULL DEFAULT 1, y int GENERATED ALWAYS AS (1) VIRTUAL"
_PUBLICATIONS: Final = ("FOR ALL TABLES", "FOR TABLE {tables}", "FOR TABLES IN SCHEMA public")
_STORED: Final = " WITH (publish_generated_columns = stored)"

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")


@pytest.fixture(scope="module", params=[14, 17, 18])
def versioned(request: pytest.FixtureRequest) -> Iterator[tuple[int, LocalPostgres]]:
    version: int = request.param
    with running_server(binaries_of(version)) as server:
        yield version, server


def create_tables(rng: random.Random, session: Connection, version: int) -> dict[str, str]:
    """Create tables, some of them partitioned; returns each one's leaf, or itself."""
    leaves = {}
    for number in range(TABLES):
        generated = rng.choice([*_GENERATED, _VIRTUAL] if version >= 18 else _GENERATED)
        columns = ", ".join(filter(None, ["id int NOT NULL", "n int", "v text", generated, rng.choice(_KEYS)]))
        name = f"t{number}"
        try:
            if rng.random() < 0.3:
                rows(session, f"CREATE TABLE {name} ({columns}) PARTITION BY RANGE (id)")
                rows(session, f"CREATE TABLE {name}_a PARTITION OF {name} FOR VALUES FROM (0) TO (10)")
                leaf = f"{name}_a"
            else:
                rows(session, f"CREATE {'UNLOGGED ' if rng.random() < 0.1 else ''}TABLE {name} ({columns})")
                leaf = name
        except PostgresError:
            # Not every key is possible.
            rows(session, f"DROP TABLE IF EXISTS {name}")
            continue
        indexes = rows(session, f"SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = '{leaf}'::regclass")  # noqa: S608  own names
        chosen = [f"USING INDEX {index}" for (index,) in indexes]
        identity = rng.choice(["DEFAULT", "DEFAULT", "FULL", "NOTHING", *chosen, *chosen])
        try:
            rows(session, f"ALTER TABLE {leaf} REPLICA IDENTITY {identity}")
        except PostgresError:
            assert identity.startswith("USING INDEX")
        rows(session, f"INSERT INTO {name} (id, n) VALUES (1, 1)")  # noqa: S608  own names
        leaves[name] = leaf
    return leaves


def refuses(session: Connection, table: str) -> bool:
    """Whether PostgreSQL refuses an update of the table."""
    try:
        rows(session, f"UPDATE {table} SET v = 'x'")  # noqa: S608  own names
    except PostgresError as error:
        if "eplica identity" not in str(error):
            raise
        return True
    return False


@pytest.mark.parametrize("seed", range(3))
def test_tables_that_refuse_updates_are_named_and_what_is_proposed_helps(
    versioned: tuple[int, LocalPostgres], seed: int
) -> None:
    """In a publication of all tables, of a schema, or of single ones; and in one that they are not in yet."""
    version, server = versioned
    rng = random.Random(seed)  # noqa: S311  not for secrets
    with closing(server.connect()) as session:
        leaves = create_tables(rng, session, version)
        oids = {name: int(rows(session, f"SELECT '{name}'::regclass::oid::bigint")[0][0]) for name in leaves}
        logged = [name for (name,) in rows(session, "SELECT relname FROM pg_class WHERE relpersistence = 'p'")]
        kind = rng.choice(_PUBLICATIONS if version >= 15 else _PUBLICATIONS[:2])
        stored = _STORED if version >= 18 and rng.random() < 0.4 else ""
        rows(session, f"CREATE PUBLICATION p{stored}")
        before = without_identity(session, "p", dict.fromkeys(oids.values(), ()))
        rows(session, "DROP PUBLICATION p")
        listed = rng.sample(sorted(set(leaves) & set(logged)), len(leaves) // 2)
        rows(session, f"CREATE PUBLICATION p {kind.format(tables=', '.join(listed))}{stored}")
        refused = {leaf for leaf in leaves.values() if refuses(session, leaf)}
        assert {name for _, name in tables_without_identity(session, "p")} == refused
        assert refused
        assert refused != set(leaves.values())
        published = set(listed) if "{" in kind else set(leaves)
        for name in published:
            broken, remedy = before.get(oids[name], ([], Remedy(())))
            assert [table for _, table in broken] == [leaf for leaf in [leaves[name]] if leaf in refused]
            for statement in remedy.statements:
                rows(session, statement)
            if remedy.statements:
                assert not refuses(session, leaves[name])
            assert bool(broken) == bool(str(remedy))
        rows(session, "DROP PUBLICATION p")
        rows(session, "DROP SCHEMA public CASCADE")
        rows(session, "CREATE SCHEMA public")
