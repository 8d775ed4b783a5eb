"""REPLICA IDENTITY FULL that capture sets: on servers of several versions, and the application's statements work."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from threading import Thread
from typing import Final

import pytest

from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect, rows
from flushtracker.postgres.full_identity import LOCK_MS, FullIdentity
from flushtracker.postgres.publication import Publication
from tests.support.new_server import running_server
from tests.support.seeds import in_turn
from tests.support.server_versions import binaries_of, runs_here
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")
TABLE: Final = "CREATE TABLE t (id int PRIMARY KEY, r text{more})"
STORED: Final = ", g int GENERATED ALWAYS AS (id + 1) STORED"
VIRTUAL: Final = ", g int GENERATED ALWAYS AS (id + 1) VIRTUAL"
ROOT: Final = "CREATE TABLE t (id int PRIMARY KEY, r text{more}) PARTITION BY RANGE (id)"
LEAVES: Final = tuple(
    f"CREATE TABLE t_{n} PARTITION OF t FOR VALUES FROM ({n * 10}) TO ({n * 10 + 10})" for n in (0, 1)
)
CHANGES: Final = ("INSERT INTO t VALUES (1, 'x')", "UPDATE t SET r = 'y'", "UPDATE t SET id = 2", "DELETE FROM t")
IDENTITIES: Final = """
SELECT c.oid::bigint, c.relreplident::text FROM pg_class c
WHERE c.relname ~ '^t(_|$)' AND c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace ORDER BY c.relname
"""
RESET: Final = (
    "DROP SCHEMA public CASCADE",
    "CREATE SCHEMA public",
    "GRANT ALL ON SCHEMA public TO PUBLIC",
)


@dataclass(frozen=True)
class Case:
    """A table whose publications, besides capture's, are ``others``; ``full_since`` and ``full_before`` bound the
    versions on which it can be FULL.
    """

    name: str
    create: tuple[str, ...]
    full_before: int = 99
    oldest: int = 14


def created(more: str = "", *others: str) -> tuple[str, ...]:
    return (TABLE.replace("{more}", more), *others)


CASES: Final = (
    Case("plain", created()),
    Case("types without equality", created(", j json, p point, x xml")),
    Case(
        "stored, sent by all",
        created(STORED, "CREATE PUBLICATION o FOR TABLE t WITH (publish_generated_columns = stored)"),
        oldest=18,
    ),
    Case("stored, sent by ours", created(STORED)),
    Case("stored, another publication omits it", created(STORED, "CREATE PUBLICATION o FOR TABLE t"), 18),
    Case("stored, all tables", created(STORED, "CREATE PUBLICATION o FOR ALL TABLES"), 18),
    Case("stored, inserts alone", created(STORED, "CREATE PUBLICATION o FOR TABLE t WITH (publish = insert)")),
    Case("stored, deletes alone", created(STORED, "CREATE PUBLICATION o FOR TABLE t WITH (publish = 'delete')"), 18),
    Case("stored, its schema", created(STORED, "CREATE PUBLICATION o FOR TABLES IN SCHEMA public"), 18, oldest=15),
    Case("virtual", created(VIRTUAL), 0, oldest=18),
    Case("column list", created("", "CREATE PUBLICATION o FOR TABLE t (id, r)"), 0, oldest=15),
    Case("row filter", created("", "CREATE PUBLICATION o FOR TABLE t WHERE (id > 0)"), oldest=15),
    Case(
        "column list of the partitioned table",
        (
            ROOT.replace("{more}", ""),
            *LEAVES,
            "CREATE PUBLICATION o FOR TABLE t (id) WITH (publish_via_partition_root)",
        ),
        0,
        oldest=15,
    ),
    Case("partitions", (ROOT.replace("{more}", ""), *LEAVES)),
    Case("partitions, stored", (ROOT.replace("{more}", STORED), *LEAVES, "CREATE PUBLICATION o FOR TABLE t"), 18),
    Case(
        "dropped index",
        created(
            "", "CREATE UNIQUE INDEX t_i ON t (id)", "ALTER TABLE t REPLICA IDENTITY USING INDEX t_i", "DROP INDEX t_i"
        ),
    ),
    Case("nothing", created("", "ALTER TABLE t REPLICA IDENTITY NOTHING")),
    Case("dropped column", created("", "ALTER TABLE t DROP COLUMN r", "ALTER TABLE t ADD COLUMN r text")),
    Case(
        "forced row security",
        created("", "ALTER TABLE t ENABLE ROW LEVEL SECURITY", "ALTER TABLE t FORCE ROW LEVEL SECURITY"),
    ),
    Case("inherited", created("", "CREATE TABLE t_child () INHERITS (t)")),
)


@pytest.fixture(scope="module", params=[18, *in_turn([14, 15, 16, 17])])
def versioned(request: pytest.FixtureRequest) -> Iterator[tuple[int, LocalPostgres]]:
    version: int = request.param
    with running_server(binaries_of(version)) as server:
        server.execute("CREATE ROLE app LOGIN", "CREATE ROLE capture LOGIN REPLICATION")
        yield version, server


@pytest.fixture
def server(versioned: tuple[int, LocalPostgres]) -> LocalPostgres:
    _, server = versioned
    names = [name for (name,) in server.execute("SELECT quote_ident(pubname) FROM pg_publication")]
    server.execute(*(f"DROP PUBLICATION {name}" for name in names), *RESET)
    return server


def identities(server: LocalPostgres) -> dict[int, str]:
    return dict(server.execute(IDENTITIES))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_full_is_set_only_where_the_server_refuses_nothing_then(
    versioned: tuple[int, LocalPostgres], server: LocalPostgres, case: Case
) -> None:
    """The server decides: after FULL the application's statements work as before. Where it was not set, they would not
    with it, which shows that it was left out for a reason.
    """
    version, _ = versioned
    if version < case.oldest:
        pytest.skip(f"not in PostgreSQL {version}")
    server.execute(*case.create)
    with closing(connect(server.options)) as connection:
        publication = Publication(connection, "p", "s", sets_identities=True)
        assert publication.create([])
        before = identities(server)
        may = version < case.full_before
        assert publication.give_identities(before.keys()) == may
        assert set(identities(server).values()) == ({"f"} if may else set(before.values()))
        rows(connection, "ALTER PUBLICATION p ADD TABLE public.t")
    server.execute(*CHANGES)
    if may:
        return
    server.execute(
        *(
            f"ALTER TABLE {leaf} REPLICA IDENTITY FULL"
            for (leaf,) in server.execute(
                "SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^t(_[01])?$' AND relkind = 'r'"
            )
        ),
        CHANGES[0],
    )
    with pytest.raises(PostgresError, match=r"cannot (update|delete from) table"):
        server.execute(CHANGES[1], CHANGES[3])


def test_a_long_transaction_delays_the_identity_and_nobody_else(server: LocalPostgres) -> None:
    """What queues behind the request for the lock goes on after at most its timeout; later the lock is there."""
    server.execute(*created("", "ALTER TABLE t REPLICA IDENTITY NOTHING"))
    with closing(connect(server.options)) as connection, closing(server.connect()) as holder:
        publication = Publication(connection, "p", "s", sets_identities=True)
        assert publication.create([])
        leaves = identities(server).keys()
        rows(holder, "BEGIN; INSERT INTO public.t VALUES (1, 'x')")
        begun_s, waited_s = time.monotonic(), list[float]()

        def update() -> None:
            with closing(server.connect()) as application:
                while time.monotonic() - begun_s < 2:
                    at_s = time.monotonic()
                    rows(application, "SET lock_timeout = '5s'; INSERT INTO public.t SELECT 2, 'x' WHERE false")
                    waited_s.append(time.monotonic() - at_s)

        application = Thread(target=update)
        application.start()
        assert "no replica identity" in next(iter(publication.publish(dict.fromkeys(leaves, ())).values())).reason
        assert publication.awaits_identity(leaves)
        assert not publication.can_publish(leaves), "it is not tried again at once"
        application.join()
        assert max(waited_s) < LOCK_MS / 1000 + 0.5
        rows(holder, "COMMIT")
        again = Publication(connection, "p", "s", sets_identities=True)
        assert again.publish(dict.fromkeys(leaves, ())) == {}
    assert set(identities(server).values()) == {"f"}


def test_many_locked_partitions_stop_the_stream_for_a_bounded_time(server: LocalPostgres) -> None:
    """One owner may have locked them all. Those that were not tried are the first of the next round."""
    parts = (f"CREATE TABLE t_{n} PARTITION OF t FOR VALUES FROM ({n * 10}) TO ({n * 10 + 10})" for n in range(400))
    server.execute(ROOT.replace("{more}", ""), *parts)
    with closing(connect(server.options)) as connection, closing(server.connect()) as holder:
        rows(holder, "BEGIN; LOCK TABLE public.t IN ROW EXCLUSIVE MODE")
        subject, leaves = FullIdentity(connection, "p"), identities(server)
        begun_s = time.monotonic()
        assert not subject.give(leaves)
        assert time.monotonic() - begun_s < 4
        assert subject.waiting == leaves.keys()
        assert subject.can_give(leaves)
        rows(holder, "COMMIT")
        wait_until(lambda: not subject.give(leaves) and not subject.can_give(leaves), "the others", timeout_s=60)
    assert set(identities(server).values()) == {"d", "f"}


def test_a_table_of_another_role_is_left_alone(server: LocalPostgres, caplog: pytest.LogCaptureFixture) -> None:
    """Only an owner may alter a table. That is said once, and capture may alter it once it has the owner's role."""
    server.execute(*created(), "ALTER TABLE t OWNER TO app", "GRANT SELECT ON t TO capture")
    with closing(connect({**server.options, "user": "capture"})) as connection:
        leaves = identities(server)
        for _ in range(2):
            subject = FullIdentity(connection, "p")
            assert not subject.give(leaves)
            assert not subject.give(leaves)
            assert not subject.waiting
        assert caplog.text.count("replica identity not set table=public.t reason=capture's role is not the owner") == 2
        server.execute("GRANT app TO capture")
        assert FullIdentity(connection, "p").give(leaves)
        server.execute("REVOKE app FROM capture")


def test_a_publication_that_capture_does_not_manage_alters_no_table(server: LocalPostgres) -> None:
    """Nor does one in the middle of a transaction, which would keep the locks, nor without the opt-in."""
    server.execute(*created(), "CREATE PUBLICATION mine FOR TABLE t")
    leaves = identities(server)
    with closing(connect(server.options)) as connection:
        assert not Publication(connection, "mine", "s", sets_identities=True).give_identities(leaves)
        managed = Publication(connection, "p", "s", sets_identities=True)
        assert managed.create([])
        assert not Publication(connection, "p", "s").give_identities(leaves)
        rows(connection, "BEGIN")
        assert not managed.give_identities(leaves)
        rows(connection, "ROLLBACK")
        assert identities(server) == leaves
        assert managed.give_identities(leaves)


def test_a_table_that_is_renamed_meanwhile_keeps_its_identity(
    server: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has its name by then, which nobody has asked for."""
    server.execute(*created())
    leaves = identities(server)
    with closing(connect(server.options)) as connection:
        subject = FullIdentity(connection, "p")
        refusing = subject._refusing

        def rename(oids: Collection[int]) -> Mapping[int, list[str]]:
            server.execute("ALTER TABLE t RENAME TO t_old", *created())
            return refusing(oids)

        monkeypatch.setattr(subject, "_refusing", rename)
        assert not subject.give(leaves)
    assert set(identities(server).values()) == {"d"}
