"""Advice that is followed to the letter, on a server of each version: it ends the complaint and breaks no statement.

Each scenario provokes a complaint, and runs the SQL of the message, until there is none. Then the table is published,
and the application's INSERT, UPDATE and DELETE must work in it as they did before.
"""

import ast
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import flushtracker
from flushtracker.config.table_names import parse_table
from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.operate.shapes.catalog_check import catalog_problems
from flushtracker.postgres.connection import Connection, connect, rows
from flushtracker.postgres.failover_lacks import failover_lacks
from flushtracker.postgres.identity_remedies import IdentityRemedies
from flushtracker.postgres.publication import Publication
from flushtracker.postgres.replica_identity import without_identity
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.postgres.slot import check_server, read_slot, read_slot_status
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import read_shapes_file, typed_table
from flushtracker.status.ack_findings import slot_findings
from flushtracker.status.upgrade_facts import UpgradeFacts, upgrade_findings
from tests.support.new_server import running_server
from tests.support.seeds import in_turn
from tests.support.server_versions import binaries_of, runs_here
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")
_PARTS: Final = tuple(
    f"CREATE TABLE {{t}}_{n} PARTITION OF {{t}} FOR VALUES FROM ({n * 10}) TO ({n * 10 + 10})" for n in range(5)
)
_TABLE: Final = "CREATE TABLE {t} (id int PRIMARY KEY, r text {null}{more})"
_ROOT: Final = "CREATE TABLE {t} (id int PRIMARY KEY, r text NOT NULL{more}) PARTITION BY RANGE (id)"
_STORED: Final = ", g int GENERATED ALWAYS AS (id + 1) STORED"
_VIRTUAL: Final = ", g int GENERATED ALWAYS AS (id + 1) VIRTUAL"
_FULL: Final = "ALTER TABLE {t} REPLICA IDENTITY FULL"
_ODD: Final = """"It's; $do$ %s A" """.strip()


@dataclass(frozen=True)
class _Scenario:
    """``advice`` begins the statement that is printed, by version: the one since 18, and before; ``None``: no SQL."""

    name: str
    create: tuple[str, ...]
    before: str | None
    since_18: str | None
    table: str = "public.t"
    where: str | None = "r = 'x'"
    oldest: int = 14


def _created(null: str = "NOT NULL", more: str = "") -> str:
    return _TABLE.replace("{null}", null).replace("{more}", more)


_SCENARIOS: Final = (
    _Scenario("beyond the key", (_created(),), "ALTER TABLE", "ALTER TABLE"),
    _Scenario(
        "an index has the columns",
        (_created(), "CREATE UNIQUE INDEX {t}_i ON {t} (r, id)"),
        'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "t_i"',
        'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "t_i"',
    ),
    _Scenario("generated column", (_created(more=_STORED),), "ALTER TABLE", "CREATE UNIQUE INDEX"),
    _Scenario("generated column under FULL", (_created(more=_STORED), _FULL), None, "CREATE UNIQUE INDEX"),
    _Scenario("generated, nullable", (_created("", _STORED),), "ALTER TABLE", "ALTER PUBLICATION"),
    _Scenario("virtual column", (_created(more=_VIRTUAL),), None, "CREATE UNIQUE INDEX", oldest=18),
    _Scenario("many partitions", (_ROOT.replace("{more}", ""), *_PARTS), "DO $", "DO $"),
    _Scenario("few partitions", (_ROOT.replace("{more}", ""), *_PARTS[:2]), "ALTER TABLE", "ALTER TABLE"),
    _Scenario("generated, partitions", (_ROOT.replace("{more}", _STORED), *_PARTS), "DO $", "DO $"),
    _Scenario(
        "generated, under FULL, partitions",
        (
            _ROOT.replace("{more}", _STORED),
            *_PARTS,
            *(f"ALTER TABLE {{t}}_{n} REPLICA IDENTITY FULL" for n in range(5)),
        ),
        None,
        "DO $",
    ),
    _Scenario(
        "odd name",
        (
            f"CREATE TABLE {_ODD} (id int PRIMARY KEY, r text NOT NULL{_STORED}) PARTITION BY RANGE (id)",
            *(each.replace("{t}_", "odd_").replace("{t}", _ODD) for each in _PARTS),
        ),
        "DO $",
        "DO $",
        f"public.{_ODD}",
    ),
    _Scenario(
        "unique index alone",
        ("CREATE TABLE {t} (id int NOT NULL UNIQUE, r text)",),
        "ALTER TABLE",
        "ALTER TABLE",
        where=None,
    ),
    _Scenario(
        "unique index alone, beyond it",
        (f"CREATE TABLE {{t}} (id int NOT NULL UNIQUE, r text NOT NULL{_STORED})",),
        "ALTER TABLE",
        "CREATE UNIQUE INDEX",
    ),
)


@pytest.fixture(scope="module", params=[18, *in_turn([14, 15, 16, 17])])
def versioned(request: pytest.FixtureRequest) -> Iterator[tuple[int, LocalPostgres]]:
    version: int = request.param
    with running_server(binaries_of(version)) as server:
        yield version, server


@pytest.fixture
def session(versioned: tuple[int, LocalPostgres]) -> Iterator[Connection]:
    _, server = versioned
    with closing(server.connect()) as opened:
        yield opened
        rows(opened, "DROP PUBLICATION IF EXISTS p")
        rows(opened, "DROP SCHEMA public CASCADE")
        rows(opened, "CREATE SCHEMA public")


def statements_of(message: str) -> list[str]:
    """The SQL that a message says to run."""
    _, _, advice = re.split(r"(contain only [^;]*|updates and deletes); ", message, maxsplit=1)
    sql = advice.partition(", or ")[0]
    if not re.match("ALTER|CREATE|DO", sql):
        return []
    return [sql] if sql.startswith("DO") else sql.split("; ")


def _count(session: Connection, table: str) -> int:
    """How many partitions the table has, or would have."""
    ((count,),) = rows(session, "SELECT count(*) FROM pg_inherits WHERE inhparent = %s::regclass", (table,))
    return int(count) or len(_PARTS)


def use(session: Connection, table: str) -> None:
    """What the application does, in each partition."""
    for n in (7, 17, 27, 37, 47):
        if n < _count(session, table) * 10:
            rows(session, f"INSERT INTO {table} (id, r) VALUES ({n}, 'x')")  # noqa: S608  own names
    for statement in (f"UPDATE {table} SET r = 'y'", f"UPDATE {table} SET id = id + 1", f"DELETE FROM {table}"):  # noqa: S608  likewise
        rows(session, statement)


@pytest.mark.parametrize("scenario", _SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_is_advised_about_a_replica_identity_ends_the_complaint(
    versioned: tuple[int, LocalPostgres], session: Connection, scenario: _Scenario
) -> None:
    """In one step, for all partitions."""
    version, server = versioned
    if version < scenario.oldest:
        pytest.skip("there are no such columns")
    for statement in scenario.create:
        rows(session, statement.replace("{t}", "t"))
    use(session, scenario.table)
    definition = ShapeDefinition("s", parse_table(scenario.table), where=scenario.where)
    # One that capture creates sends stored columns, and FULL would do.
    rows(session, "CREATE PUBLICATION p")
    rows(session, "COMMENT ON PUBLICATION p IS 'managed by flushtracker capture for slot s'")
    with closing(server.connect()) as other:
        subject = Publication(other, "p", "s")
        errors, _ = catalog_problems(server.options, "p", [definition])
        expected = scenario.since_18 if version >= 18 else scenario.before
        if expected is None:
            assert errors == []
        else:
            (error,) = errors
            statements = statements_of(str(error))
            assert statements[0].startswith(expected), error
            for statement in statements:
                rows(session, statement)
        errors, notes = catalog_problems(server.options, "p", [definition])
        assert errors == []
        assert any("a new partition of" in note for note in notes) == ("PARTITION" in scenario.create[0])
        ((oid,),) = rows(session, "SELECT %s::regclass::oid::bigint", (scenario.table,))
        assert subject.publish({oid: ("id", "r")}) == {}
    use(session, scenario.table)


@pytest.mark.parametrize("kind", ["FULL", "index"])
def test_the_event_trigger_gives_new_partitions_their_identity(
    versioned: tuple[int, LocalPostgres], session: Connection, kind: str
) -> None:
    """Those that are created and those that are attached, of the listed table alone; also with an index."""
    _, server = versioned
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    trigger = page.partition("### New partitions")[2].partition("```sql\n")[2].partition("```")[0]
    root = "CREATE TABLE {t} (id int PRIMARY KEY, r text NOT NULL) PARTITION BY RANGE (id)"
    for table in ("events", "others"):
        for statement in (root, *_PARTS[:3]):
            rows(session, statement.replace("{t}", table))
    definition = ShapeDefinition("s", ("public", "events"), where="r = 'x'")
    if kind == "index":
        own = "EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', leaf.name);"
        index = "EXECUTE format('CREATE UNIQUE INDEX replica_identity_%s ON %s (%s)', leaf.oid, leaf.name, 'id, r'); "
        index += (
            "EXECUTE format('ALTER TABLE %s REPLICA IDENTITY USING INDEX replica_identity_%s', leaf.name, leaf.oid);"
        )
        assert own in trigger
        trigger = trigger.replace(own, index)
    rows(session, trigger)
    try:
        rows(session, "CREATE TABLE events_x (id int PRIMARY KEY, r text NOT NULL)")
        rows(session, "ALTER TABLE events ATTACH PARTITION events_x FOR VALUES FROM (30) TO (40)")
        rows(session, _PARTS[4].replace("{t}", "events"))
        rows(session, _PARTS[4].replace("{t}", "others"))
        rows(session, "CREATE TABLE plain (id int PRIMARY KEY)")
        altered = rows(session, "SELECT relname FROM pg_class WHERE relreplident IN ('f', 'i') ORDER BY 1")
        assert [name for (name,) in altered] == [f"events_{n}" for n in (0, 1, 2, 4, "x")]
        rows(session, "CREATE PUBLICATION p FOR TABLE events, others")
        assert catalog_problems(server.options, "p", [definition])[0] == []
        use(session, "events")
        rows(session, "UPDATE others SET r = 'y'")
    finally:
        rows(session, "DROP EVENT TRIGGER partition_identity")
        rows(session, "DROP FUNCTION set_partition_identity")


def test_columns_that_are_left_out_are_sent_as_advised(
    versioned: tuple[int, LocalPostgres], session: Connection
) -> None:
    """The table keeps its identity, which has no generated column."""
    version, server = versioned
    if version < 18:
        pytest.skip("they cannot be sent")
    rows(session, _created(more=_STORED).replace("{t}", "t"))
    rows(session, "CREATE PUBLICATION p FOR TABLE t")
    definition = ShapeDefinition("s", ("public", "t"))
    errors, (note,) = catalog_problems(server.options, "p", [definition])
    assert errors == []
    found = re.search("ALTER PUBLICATION [^;]*", note)
    assert found is not None
    rows(session, found[0])
    assert catalog_problems(server.options, "p", [definition]) == ([], [])
    use(session, "t")


def test_where_nothing_helps_the_message_says_why(versioned: tuple[int, LocalPostgres], session: Connection) -> None:
    """A generated column that is never sent, and a condition on a column that may be NULL, or has no order."""
    version, server = versioned
    if version < 18:
        pytest.skip("FULL helps")
    rows(session, _created("", _VIRTUAL).replace("{t}", "t"))
    (error,), _ = catalog_problems(server.options, None, [ShapeDefinition("s", ("public", "t"), where="r = 'x'")])
    assert "FULL would have generated columns that are not sent (g), and an index cannot, because r may be" in str(
        error
    )
    assert statements_of(str(error)) == []


def test_an_index_is_advised_only_on_what_has_an_order(
    versioned: tuple[int, LocalPostgres], session: Connection
) -> None:
    """A domain over a domain has, and an array if its items have: one of json is accepted, and then no row is."""
    version, server = versioned
    if version < 18:
        pytest.skip("FULL helps")
    for statement in ("CREATE DOMAIN public.one AS int", "CREATE DOMAIN public.two AS public.one"):
        rows(session, statement)
    more = ", d public.two NOT NULL DEFAULT 1, a text[] NOT NULL DEFAULT '{}', j json[] NOT NULL DEFAULT '{}'"
    rows(session, _created(more=more + _STORED).replace("{t}", "t"))
    for where, is_possible in (("a = '{}' AND d IS NOT NULL", True), ("j IS NOT NULL", False)):
        definition = ShapeDefinition("s", ("public", "t"), where=where)
        (error,), _ = catalog_problems(server.options, None, [definition])
        statements = statements_of(str(error))
        assert bool(statements) == is_possible, error
        for statement in statements:
            rows(session, statement)
    use(session, "t")


def test_what_is_advised_about_a_publication_ends_the_complaint(
    versioned: tuple[int, LocalPostgres], session: Connection
) -> None:
    """Each setting that is refused, and a slot's name that another publication has."""
    _, server = versioned
    rows(session, "CREATE TABLE t (id int PRIMARY KEY, r text)")
    mark = "COMMENT ON PUBLICATION p IS 'managed by flushtracker capture for slot other'"
    with closing(server.connect()) as other:
        for made in ("WITH (publish = insert)", "WITH (publish_via_partition_root = true)", ""):
            rows(session, f"CREATE PUBLICATION p FOR TABLE t {made}")
            if not made:
                rows(session, mark)
            subject = Publication(other, "p", "s")
            with pytest.raises(PostgresError) as caught:
                subject.check()
            found = re.search("(ALTER PUBLICATION|COMMENT ON) .*", str(caught.value))
            assert found is not None
            rows(session, found[0])
            assert subject.check()
            use(session, "t")
            rows(session, "DROP PUBLICATION p")


def test_what_is_advised_about_a_role_and_its_publication_ends_the_complaint(
    versioned: tuple[int, LocalPostgres], session: Connection
) -> None:
    """A role that may not read a slot, nor create a publication."""
    _, server = versioned
    rows(session, "CREATE TABLE t (id int PRIMARY KEY, r text)")
    rows(session, 'CREATE ROLE "Reader x" LOGIN')
    try:
        with closing(connect({**server.options, "user": "Reader x"})) as reader:
            with pytest.raises(PostgresError) as caught:
                check_server(reader)
            rows(session, str(caught.value).partition("; ")[2])
            check_server(reader)
            with pytest.raises(PostgresError) as refused:
                Publication(reader, "p", "s").create([("public", "t")])
            rows(session, str(refused.value).partition("superuser: ")[2])
            assert Publication(reader, "p", "s").check()
        use(session, "t")
    finally:
        rows(session, 'DROP ROLE "Reader x"')


def test_two_phase_of_a_slot_is_disabled_as_advised(versioned: tuple[int, LocalPostgres], session: Connection) -> None:
    version, server = versioned
    if version < 18:
        pytest.skip("it cannot be disabled")
    rows(session, "SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, true)")
    try:
        with pytest.raises(PostgresError) as caught:
            read_slot(session, "s")
        with closing(connect({**server.options, "replication": "database"})) as replication:
            rows(replication, str(caught.value).partition("replication connection: ")[2])
        assert read_slot(session, "s").active_pid is None
    finally:
        rows(session, "SELECT pg_drop_replication_slot('s')")


@pytest.mark.parametrize("name", ["ProjectMembers", 'It\'s "so", {a}: #1', "plain", "1st", "ÄÖ"])
def test_a_table_is_proposed_as_it_must_be_typed(
    versioned: tuple[int, LocalPostgres], session: Connection, tmp_path: Path, name: str
) -> None:
    """``public.ProjectMembers`` is folded to lower case, so the hint has the quotes, and those that YAML needs."""
    _, server = versioned
    if name == "ProjectMembers":
        rows(session, 'CREATE TABLE "ProjectMembers" (id int PRIMARY KEY)')
        (error,), _ = catalog_problems(server.options, None, [ShapeDefinition("s", ("public", "projectmembers"))])
        hint = str(error).partition("did you mean ")[2].removesuffix("?")
        assert hint == """'public."ProjectMembers"'"""
    path = tmp_path / "shapes.yaml"
    for text in ("shapes: [{{id: s, table: {0}}}]\n", "shapes:\n  - id: s\n    table: {0}\n"):
        path.write_text(text.format(typed_table(("public", name))))
        (shape,) = read_shapes_file(path).definitions
        assert shape.table == ("public", name)


@pytest.fixture
def restartable(versioned: tuple[int, LocalPostgres]) -> Iterator[LocalPostgres]:
    """The server, which tests may restart with other settings."""
    _, server = versioned
    before = dict(server.settings)
    yield server
    server.settings = before
    server.execute("ALTER SYSTEM RESET ALL")
    server.restart()


def test_wal_level_is_raised_as_advised(restartable: LocalPostgres) -> None:
    del restartable.settings["wal_level"]
    restartable.restart()
    with closing(restartable.connect()) as session:
        with pytest.raises(PostgresError, match="wal_level is replica") as caught:
            check_server(session)
        rows(session, str(caught.value).partition("; ")[2].partition(", and restart")[0])
    restartable.restart()
    with closing(restartable.connect()) as session:
        check_server(session)


def test_a_slot_keeps_its_wal_as_advised(restartable: LocalPostgres) -> None:
    """Before the next checkpoint, which then removes nothing."""
    restartable.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    with closing(restartable.connect()) as session:

        def problems() -> dict[str, str]:
            slot = read_slot_status(session, "s", 0)
            return {} if slot is None else {each.kind: each.remedy or "" for each in slot_findings(slot)}

        rows(session, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        for _ in range(3):
            rows(session, "SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")
        advice = problems()["slot_unreserved"]
        for statement in advice.partition("allows: ")[2].split("; ")[:2]:
            rows(session, statement)
        wait_until(lambda: problems().keys() == {"slot_inactive"}, "the setting is read", 60)
        rows(session, "CHECKPOINT")
        assert problems().keys() == {"slot_inactive"}
        rows(session, "SELECT pg_drop_replication_slot('s')")


def test_a_slot_becomes_a_failover_slot_as_advised(versioned: tuple[int, LocalPostgres], session: Connection) -> None:
    """Over a replication connection, and while nobody reads it."""
    version, server = versioned
    if version < 17:
        pytest.skip("there are no failover slots")
    rows(session, "SELECT pg_create_physical_replication_slot('standby')")
    rows(session, "SELECT pg_create_logical_replication_slot('1st', 'pgoutput')")
    try:
        lack, *others = failover_lacks(session, server.options, "1st", connect) or ()
        assert lack.startswith("slot 1st is no failover slot; stop capture")
        with closing(connect({**server.options, "replication": "database"})) as replication:
            rows(replication, lack.partition("replication connection: ")[2])
        assert list(failover_lacks(session, server.options, "1st", connect) or ()) == others
    finally:
        rows(session, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def test_open_transactions_are_found_as_advised_before_an_upgrade(
    versioned: tuple[int, LocalPostgres], session: Connection
) -> None:
    """By the two queries of the message: the session that has written, and what is prepared."""
    _, server = versioned
    rows(session, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    slot = read_slot_status(session, "s", 0)
    assert slot is not None
    facts = UpgradeFacts(
        18,
        is_standby=False,
        written_lsn=slot.written_lsn,
        open_transactions=1,
        prepared_transactions=0,
        free_slots=1,
        other_slots=(),
        sealed_lsn=None,
    )
    (remedy,) = (each.remedy for each in upgrade_findings(facts, slot) if each.kind == "upgrade_has_writers")
    sessions, prepared = str(remedy).partition("open: ")[2].split("; ")
    with closing(server.connect()) as writer:
        rows(writer, "BEGIN")
        ((pid, _),) = rows(writer, "SELECT pg_backend_pid(), txid_current()")
        assert pid in [found for found, *_ in rows(session, sessions)]
        assert rows(session, prepared) == []
    rows(session, "SELECT pg_drop_replication_slot('s')")


def test_a_role_may_see_the_timeline_of_a_standby_as_advised(restartable: LocalPostgres, tmp_path: Path) -> None:
    """It is granted on the primary."""
    restartable.stop()
    standby = restartable.copy_to(restartable.folder.with_name(f"{tmp_path.name}-standby"))
    (standby.data / "standby.signal").touch()
    restartable.start()
    with (standby.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"primary_conninfo = 'host=127.0.0.1 port={restartable.port} user=postgres'\n")
    restartable.execute('CREATE ROLE "Reader y" LOGIN')
    with standby:
        wait_until(lambda: standby.execute("SELECT 1 FROM pg_roles WHERE rolname = 'Reader y'"), "the role", 60)
        wait_until(lambda: standby.execute("SELECT 1 FROM pg_stat_wal_receiver"), "the standby streams", 60)
        with closing(connect({**standby.options, "user": "Reader y"})) as reader:
            tables = ServerTables(reader, "p")
            tables.standby_timeline = 1
            with pytest.raises(PostgresError, match="may not see whether its primary") as caught:
                tables.require_timeline()
            restartable.execute(str(caught.value).partition("or there: ")[2])
            granted = "SELECT 1 FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.member WHERE r.rolname = 'Reader y'"
            wait_until(lambda: standby.execute(granted), "the grant", 60)
            tables.require_timeline()
    restartable.execute('DROP ROLE "Reader y"')


@pytest.mark.parametrize(
    ("refused_by", "options"),
    [
        ('ALTER ROLE "Reader x" NOLOGIN', {}),
        ("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC", {}),
        ('ALTER ROLE "Reader x" NOREPLICATION', {"replication": "database"}),
    ],
)
def test_what_is_advised_about_a_refused_connection_lets_it_in(
    versioned: tuple[int, LocalPostgres], session: Connection, refused_by: str, options: dict[str, str]
) -> None:
    """With the names filled in."""
    _, server = versioned
    wanted = {**server.options, **options, "user": "Reader x"}
    rows(session, 'CREATE ROLE "Reader x" LOGIN')
    try:
        rows(session, refused_by)
        with pytest.raises(PostgresError) as caught:
            connect(wanted)
        advice = re.search("(ALTER ROLE|GRANT CONNECT) .*", str(caught.value))
        assert advice is not None, caught.value
        name = "postgres" if "DATABASE" in advice[0] else '"Reader x"'
        rows(session, advice[0].replace("…", name).replace("this role", '"Reader x"'))
        connect(wanted).close()
    finally:
        rows(session, "GRANT CONNECT ON DATABASE postgres TO PUBLIC")
        rows(session, 'DROP OWNED BY "Reader x"')
        rows(session, 'DROP ROLE "Reader x"')


def test_a_table_gets_a_key_as_advised_and_then_its_identity(
    versioned: tuple[int, LocalPostgres], session: Connection
) -> None:
    """Two steps, of a table whose key was dropped since its shape was found to have one."""
    version, _ = versioned
    if version < 18:
        pytest.skip("FULL helps")
    rows(session, f"CREATE TABLE t (id int, r text NOT NULL{_STORED})")
    ((oid,),) = rows(session, "SELECT 't'::regclass::oid::bigint")
    remedies = IdentityRemedies(session, None)
    first = remedies.of(("public", "t"), [oid], {"r"})
    assert first.statements == ()
    rows(session, str(first).partition("add a primary key: ")[2].replace("(…)", "(id)"))
    for statement in remedies.of(("public", "t"), [oid], {"r"}).statements:
        rows(session, statement)
    rows(session, "CREATE PUBLICATION p FOR TABLE t")
    assert without_identity(session, "p", {oid: ("r",)}) == {}
    use(session, "t")


_SQL: Final = re.compile(
    r"\b(ALTER (?:TABLE|PUBLICATION|ROLE|SYSTEM)|CREATE (?:UNIQUE INDEX|PUBLICATION)|COMMENT ON|GRANT \w+"
    r"|ALTER_REPLICATION_SLOT|DO |RESTORE TABLE)\b"
)
# Not SQL, and so not here: command lines (tests/unit/project/test_printed_commands.py), files of libpq and of the
# server (test_postgres_access.py, test_tls.py), settings of a standby (test_failover.py), and kafka-transactions.sh,
# which the test's broker has not.
_HERE: Final = "this file"
_COVERED: Final = {
    ("postgres/identity_remedies.py", "ALTER TABLE"): _HERE,
    ("postgres/identity_remedies.py", "ALTER PUBLICATION"): _HERE,
    ("postgres/identity_remedies.py", "CREATE UNIQUE INDEX"): _HERE,
    ("postgres/full_identity.py", "ALTER TABLE"): "test_full_identity.py",
    ("postgres/left_out.py", "ALTER PUBLICATION"): _HERE,
    ("postgres/publication.py", "ALTER PUBLICATION"): _HERE,
    ("postgres/publication.py", "COMMENT ON"): _HERE,
    ("postgres/publication.py", "CREATE PUBLICATION"): _HERE,
    ("postgres/server_lacks.py", "ALTER ROLE"): _HERE,
    ("postgres/server_lacks.py", "ALTER SYSTEM"): _HERE,
    ("postgres/server_lacks.py", "GRANT rds_replication"): "test_managed_roles.py",
    ("postgres/publication_lacks.py", "GRANT CREATE"): "test_init.py",
    ("postgres/key_remedies.py", "ALTER TABLE"): "test_init.py",
    ("postgres/table_survey.py", "ALTER ROLE"): "test_init.py",
    ("postgres/table_survey.py", "GRANT SELECT"): "test_init.py",
    ("postgres/table_survey.py", "GRANT USAGE"): "test_init.py",
    ("operate/init/candidates.py", "ALTER TABLE"): "test_init.py",
    ("postgres/slot.py", "ALTER_REPLICATION_SLOT"): _HERE,
    ("status/ack_findings.py", "ALTER SYSTEM"): _HERE,
    ("postgres/failover_lacks.py", "ALTER_REPLICATION_SLOT"): _HERE,
    ("postgres/server_tables.py", "GRANT pg_read_all_stats"): _HERE,
    ("postgres/connection_refusals.py", "ALTER ROLE"): _HERE,
    ("postgres/connection_refusals.py", "GRANT CONNECT"): _HERE,
    ("postgres/column_collations.py", "ALTER TABLE"): "test_collations.py",
    ("shapes/table_binding.py", "ALTER TABLE"): "test_collations.py",
    ("serve/subset/row_order.py", "ALTER TABLE"): "test_subset_order_on_server.py",
    ("delta/table_features.py", "RESTORE TABLE"): "tests/spark/test_restored_tables.py",
}


def test_every_sql_remedy_is_in_the_table() -> None:
    """A message with SQL that no scenario runs fails here; what creates a demo's or a trial's tables is no advice."""
    root, found = Path(flushtracker.__file__).parent, set[tuple[str, str]]()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        text = path.read_text()
        if name.startswith(("trials/demo/", "trials/loop_trial/", "local/")) or not _SQL.search(text):
            continue
        tree = ast.parse(text)
        docs = {id(s.value) for n in ast.walk(tree) for s in ast.iter_child_nodes(n) if isinstance(s, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                found |= {(name, each) for each in _SQL.findall(node.value)}
    assert found == _COVERED.keys()
