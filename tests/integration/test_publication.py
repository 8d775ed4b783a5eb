"""A managed publication on a real server: what it takes in and out, whose it is, and that no application breaks."""

import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import pytest

from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect, rows
from flushtracker.postgres.publication import Publication
from flushtracker.postgres.replication_stream import ReplicationStream
from tests.support.new_server import running_server
from tests.support.waiting import wait_until

PUBLISHED: Final = "SELECT prrelid::regclass::text FROM pg_publication_rel ORDER BY 1"
TABLES: Final = (
    "CREATE TABLE kept (id int PRIMARY KEY)",
    'CREATE TABLE "odd ""name" (id int PRIMARY KEY)',
    "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10)",
)
HOLDER: Final = "SELECT active_pid FROM pg_replication_slots"
_RESET: Final = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
    "DROP PUBLICATION IF EXISTS p",
    "DROP SCHEMA public CASCADE",
    "CREATE SCHEMA public",
    "REVOKE ALL ON DATABASE postgres FROM capture",
    "DROP ROLE IF EXISTS app",
)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    with running_server() as server:
        server.execute("CREATE ROLE capture LOGIN REPLICATION")
        yield server


@pytest.fixture
def postgres(server: LocalPostgres) -> LocalPostgres:
    """The module's server, with a slot and tables that are not published, and nothing from earlier tests.

    A server releases the slot of a closed stream with some delay.
    """
    wait_until(lambda: not any(pid for (pid,) in server.execute(HOLDER)), "nobody reads the slot", timeout_s=120)
    server.execute(*_RESET, *TABLES, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    return server


def oid_of(server: LocalPostgres, table: str) -> int:
    ((oid,),) = server.execute(f"SELECT '{table}'::regclass::oid::bigint")
    return int(oid)


@contextmanager
def publication(server: LocalPostgres, user: str = "postgres", slot: str = "s") -> Iterator[Publication]:
    with closing(connect({**server.options, "user": user})) as connection:
        yield Publication(connection, "p", slot)


@contextmanager
def stream(server: LocalPostgres) -> Iterator[int]:
    """Read the slot ``s``, and return the process that does."""
    with closing(ReplicationStream(server.options)) as reader:
        pid = reader.identify_system().pid
        reader.start("s", "p")
        yield pid


@contextmanager
def stream_of(subject: Publication, server: LocalPostgres) -> Iterator[None]:
    """Create the publication, and let its process read the slot."""
    assert subject.create([])
    with stream(server) as pid:
        subject.hold(pid)
        yield


def test_tables_come_and_go_with_their_shapes(postgres: LocalPostgres) -> None:
    """A partitioned table stays for the sake of a shape on its partition, which is published by it alone."""
    kept, odd, root, leaf = (oid_of(postgres, name) for name in ("kept", '"odd ""name"', "root", "leaf"))
    with publication(postgres) as subject:
        assert subject.create([])
        assert not subject.create([])
        version = subject.check()
        assert subject.publish(dict.fromkeys([kept, odd, root], ())) == {}
        assert postgres.execute(PUBLISHED) == [('"odd ""name"',), ("kept",), ("root",)]
        subject.retract([])
        assert len(postgres.execute(PUBLISHED)) == 3, "it does not read the slot"
        with stream(postgres) as pid:
            subject.hold(pid)
            subject.retract([kept, leaf])
            assert postgres.execute(PUBLISHED) == [("kept",), ("root",)]
            subject.retract([])
            assert postgres.execute(PUBLISHED) == []
        assert subject.check() == version, "shapes would end"


def test_a_process_that_lost_the_slot_takes_no_table_out(
    postgres: LocalPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one may have added a shape on the table since; until it has ended its transaction, that one waits."""
    with publication(postgres) as stale, publication(postgres) as other, closing(postgres.connect()) as busy:
        stale.create([])
        stale.publish(dict.fromkeys([oid_of(postgres, "kept")], ()))
        with stream(postgres) as pid:
            stale.hold(pid)
            rows(busy, "BEGIN")
            rows(busy, stale._mark())
            rows(other._connection, "SET lock_timeout = '50ms'")
            with pytest.raises(PostgresError, match="lock timeout"):
                other.hold(pid + 1)
            rows(busy, "ROLLBACK")
        wait_until(lambda: postgres.execute(HOLDER) == [(None,)], "the end of the stream", 10.0)
        stale.retract([])
    assert postgres.execute(PUBLISHED) == [("kept",)]
    assert "table stays in the publication table=public.kept reason=another process reads the slot" in caplog.text


def test_a_role_that_may_only_log_in_keeps_no_process_from_the_slot(postgres: LocalPostgres) -> None:
    """It held every advisory lock that could be meant, and tries to lock the publication in each way that there is."""
    postgres.execute("CREATE ROLE app LOGIN")
    with publication(postgres) as subject, closing(connect({**postgres.options, "user": "app"})) as app:
        subject.create([])
        rows(app, "BEGIN")
        rows(app, "SELECT pg_advisory_xact_lock(%s)", (0x666C7573 << 32 | zlib.crc32(b"p"),))
        for statement in (subject._mark(), "ALTER PUBLICATION p ADD TABLE kept", "DROP PUBLICATION p"):
            rows(app, "SAVEPOINT attempt")
            with pytest.raises(PostgresError, match="must be owner"):
                rows(app, statement)
            rows(app, "ROLLBACK TO attempt")
        with stream(postgres) as pid:
            rows(subject._connection, "SET lock_timeout = '1s'")
            subject.hold(pid)
            assert subject.publish({oid_of(postgres, "kept"): ()}) == {}
            subject.retract([])
        rows(app, "ROLLBACK")
    assert postgres.execute(PUBLISHED) == []


def test_a_process_of_another_role_waits_for_the_one_before(postgres: LocalPostgres) -> None:
    """The publication is not its own any more, and nothing else would tell it that a table is about to be taken out."""
    with publication(postgres) as earlier, publication(postgres, user="capture") as later:
        earlier.create([])
        later.hold(1)
        rows(earlier._connection, "BEGIN")
        rows(earlier._connection, earlier._mark())
        rows(later._connection, "SET lock_timeout = '50ms'")
        with pytest.raises(PostgresError, match="lock timeout"):
            later.hold(2)
        rows(earlier._connection, "ROLLBACK")
        later.hold(2)


@pytest.mark.parametrize(
    "created",
    [
        "CREATE PUBLICATION p",
        "CREATE PUBLICATION p FOR TABLE kept",
        "CREATE PUBLICATION p FOR ALL TABLES",
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
    ],
)
def test_somebody_elses_publication_is_never_altered(postgres: LocalPostgres, created: str) -> None:
    """Capture says the statement, although it may run it."""
    postgres.execute(created)
    before = postgres.execute("SELECT * FROM pg_publication_tables ORDER BY 1, 2, 3")
    odd = oid_of(postgres, '"odd ""name"')
    with publication(postgres) as subject, stream(postgres) as pid:
        subject.hold(pid)
        assert not subject.create([])
        assert not subject.can_publish([odd])
        subject.retract([])
        found = subject.publish(dict.fromkeys([odd], ()))[odd]
    assert found.reason == "publication p is not managed by capture"
    assert found.statement == 'ALTER PUBLICATION "p" ADD TABLE "public"."odd ""name"'
    assert postgres.execute("SELECT * FROM pg_publication_tables ORDER BY 1, 2, 3") == before


def test_a_publication_of_another_slot_is_refused_until_it_is_handed_over(postgres: LocalPostgres) -> None:
    """Two captures on one publication would take each other's tables out."""
    with publication(postgres, slot="other's") as others, publication(postgres) as subject:
        others.create([])
        assert others.check()
        with pytest.raises(PostgresError, match="managed by flushtracker capture for slot other's, which") as refused:
            subject.check()
        postgres.execute(str(refused.value).partition("is gone: ")[2])
        assert subject.check()


def test_what_a_role_may_not_do_is_said_as_a_statement(postgres: LocalPostgres) -> None:
    """CREATE on the database allows the publication, the owner's privileges the table."""
    postgres.execute("CREATE ROLE app", "ALTER TABLE kept OWNER TO app")
    kept = oid_of(postgres, "kept")
    with publication(postgres, "capture") as subject:
        with pytest.raises(PostgresError, match="allow this role CREATE on the database, or run as") as refused:
            subject.create([("public", "kept"), ("public", 'odd "name')])
        statement = str(refused.value).rpartition("superuser: ")[2]
        assert statement == (
            'CREATE PUBLICATION "p" FOR TABLE "public"."kept", "public"."odd ""name" '
            "WITH (publish_generated_columns = stored)"
        )
        postgres.execute(statement, "DROP PUBLICATION p", "GRANT CREATE ON DATABASE postgres TO capture")
        assert subject.create([])
        missing = subject.publish(dict.fromkeys([kept], ()))[kept]
        assert missing.reason == "capture's role is not the owner of table public.kept, or may not use its schema"
        assert not subject.can_publish([kept])
        postgres.execute(missing.statement or "")
        assert postgres.execute(PUBLISHED) == [("kept",)]
        postgres.execute("ALTER PUBLICATION p DROP TABLE kept", "GRANT app TO capture")
        assert not subject.can_publish([kept])
        postgres.execute("GRANT USAGE ON SCHEMA public TO capture")
        assert subject.can_publish([kept])
        assert subject.publish(dict.fromkeys([kept], ())) == {}
        version = subject.check()
        postgres.execute("ALTER PUBLICATION p OWNER TO postgres")
        assert subject.check() != version, "another owner ends all shapes"
        assert (
            subject.publish(dict.fromkeys([kept], ()))[kept].reason
            == "capture's role is not the owner of publication p"
        )


def test_a_role_takes_out_only_what_it_could_put_in_again(
    postgres: LocalPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody may have added a table before the shape is defined."""
    caplog.set_level("INFO")
    postgres.execute("GRANT CREATE ON DATABASE postgres TO capture")
    with publication(postgres, "capture") as subject:
        subject.create([])
        postgres.execute("ALTER PUBLICATION p ADD TABLE kept")
        with stream(postgres) as pid:
            subject.hold(pid)
            subject.retract([])
            subject.retract([])
    assert postgres.execute(PUBLISHED) == [("kept",)]
    assert caplog.text.count('statement=ALTER PUBLICATION "p" DROP TABLE "public"."kept"') == 1


def test_a_table_that_is_locked_is_tried_again_later(postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt waits for the lock, and so delays the stream."""
    kept, root = oid_of(postgres, "kept"), oid_of(postgres, "root")
    monkeypatch.setattr("flushtracker.postgres.publication._LOCK_MS", 20)
    with publication(postgres) as subject, closing(postgres.connect()) as busy:
        subject.create([])
        rows(busy, "BEGIN")
        rows(busy, "LOCK TABLE kept IN SHARE MODE")
        found = subject.publish(dict.fromkeys([kept, root], ()))
        assert "lock timeout" in found.pop(kept).reason
        assert found == {}
        assert not subject.can_publish([kept])
        rows(busy, "ROLLBACK")
        monkeypatch.setattr("flushtracker.postgres.publication.time.monotonic", lambda: float("inf"))
        assert subject.can_publish([kept])
        assert subject.publish(dict.fromkeys([kept], ())) == {}


def test_tables_that_are_kept_locked_together_are_waited_for_once(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their owner could delay the stream by two seconds for each, and again with each change of the shapes file."""
    locked, waits = dict.fromkeys([oid_of(postgres, "kept"), oid_of(postgres, "root")], ()), list[int]()
    monkeypatch.setattr("flushtracker.postgres.publication._LOCK_MS", 100)
    original = Publication._alter

    def alter(self: Publication, *arguments: Any) -> str | None:
        waits.append(self._lock_ms)
        return original(self, *arguments)

    monkeypatch.setattr(Publication, "_alter", alter)
    with publication(postgres) as subject, closing(postgres.connect()) as owner:
        subject.create([])
        rows(owner, "BEGIN")
        rows(owner, "LOCK TABLE kept, root IN SHARE MODE")
        found = [subject.publish(locked) for _ in range(2)]
    assert waits == [100, 20]
    assert found[0] == found[1]
    assert all("lock timeout" in each.reason for each in found[1].values())


def test_a_table_that_loses_its_identity_meanwhile_is_not_published(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at again with the table locked, and the change of the publication is rolled back."""
    kept = oid_of(postgres, "kept")
    original = Publication._alter

    def drop_key_first(self: Publication, *arguments: Any) -> str | None:
        postgres.execute("ALTER TABLE kept DROP CONSTRAINT kept_pkey")
        return original(self, *arguments)

    monkeypatch.setattr(Publication, "_alter", drop_key_first)
    with publication(postgres) as subject:
        subject.create([])
        assert subject.publish(dict.fromkeys([kept], ()))[kept].reason.endswith("it has lost its replica identity")
    assert postgres.execute(PUBLISHED) == []


@pytest.mark.parametrize("verb", ["add", "drop"])
def test_another_table_that_has_taken_the_name_meanwhile_is_left_alone(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The statement names its table, and migrations exchange names."""
    postgres.execute("CREATE TABLE other (id int PRIMARY KEY)")
    kept, other = oid_of(postgres, "kept"), oid_of(postgres, "other")
    original = Publication._alter

    def exchange_first(self: Publication, *arguments: Any) -> str | None:
        postgres.execute("ALTER TABLE kept RENAME TO gone", "ALTER TABLE other RENAME TO kept")
        return original(self, *arguments)

    with publication(postgres) as subject, stream_of(subject, postgres):
        if verb == "drop":
            subject.publish(dict.fromkeys([kept, other], ()))
        monkeypatch.setattr(Publication, "_alter", exchange_first)
        if verb == "add":
            assert subject.publish(dict.fromkeys([kept], ()))[kept].reason.endswith("it was renamed meanwhile")
            assert postgres.execute(PUBLISHED) == []
        else:
            subject.retract([other])
            assert postgres.execute(PUBLISHED) == [("gone",), ("kept",)]
