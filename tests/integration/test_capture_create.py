"""``flushtracker capture --create``: what it creates, and that a refusal leaves no slot that keeps WAL."""

import re
import signal
from contextlib import closing

import pytest

from flushtracker.cli import main
from flushtracker.errors import SlotError
from flushtracker.events.topic_rules import ROLES
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect, rows
from flushtracker.postgres.publication import Publication
from flushtracker.postgres.slot import create_slot, system_identifier
from flushtracker.postgres.upgrade_seal import create_seal
from tests.support.capture_rig import ROOT, CaptureRig, RigOn, shape
from tests.support.kafka_streams import create_topic

USERS = "CREATE TABLE users (id serial PRIMARY KEY, region text)"
NOTHING = "SELECT 1"
SLOTS = "SELECT slot_name FROM pg_replication_slots"
PUBLICATIONS = "SELECT pubname FROM pg_publication"


@pytest.fixture
def rig(postgres: LocalPostgres, rig_on: RigOn) -> CaptureRig:
    """A table and a shape on it; no topics, publication or slot."""
    rig = rig_on(postgres)
    postgres.execute(USERS)
    rig.define(shape("users"))
    return rig


def create(rig: CaptureRig, *options: str) -> int:
    """Run ``--create``, end it once it captures, and return its exit code."""
    before = rig.log().count("capturing source=")
    process = rig.start_process("flushtracker", "capture", "--create", *options)
    rig.wait(
        lambda: process.poll() is not None or rig.log().count("capturing source=") > before, "capture or its refusal"
    )
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    return process.wait(30)


def test_everything_is_created_once_and_found_the_second_time(rig: CaptureRig) -> None:
    """A supervisor may pass the flag at every start."""
    assert create(rig) == 0
    assert [line.split(": ")[1] for line in rig.log().splitlines() if "created " in line] == [
        "created publication shapes",
        "created topics for fragments, flushes, shapes, shape_changes",
        "created slot shapes",
    ]
    assert create(rig) == 0, rig.log()
    assert rig.log().count("created ") == 3


_CATALOG = """
SELECT 'slot', slot_name FROM pg_replication_slots UNION ALL SELECT 'publication', pubname FROM pg_publication
UNION ALL SELECT 'trigger', evtname FROM pg_event_trigger UNION ALL SELECT 'trigger', tgname FROM pg_trigger
UNION ALL SELECT 'schema', nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_t%'
UNION ALL SELECT 'function', proname FROM pg_proc WHERE oid >= 16384
UNION ALL SELECT relkind::text, relname || relreplident::text FROM pg_class WHERE oid >= 16384 AND relnamespace <> 99
"""


def test_nothing_is_left_in_a_database_that_it_was_taken_out_of(rig: CaptureRig) -> None:
    """By the statements of the page, also of a slot that was sealed for an upgrade."""
    before = sorted(rig.server.execute(_CATALOG))
    assert create(rig) == 0
    with closing(connect(rig.server.options)) as connection:
        create_seal(connection, "shapes", system_identifier(connection))
    found = rig.server.execute(_CATALOG)
    assert len(found) > len(before) + 2
    page = (ROOT / "docs" / "operating.md").read_text().partition("\n## Taking it out of a database\n")[2]
    (block,) = re.findall(r"```sql\n(.*?)```", page.partition("\n## ")[0], re.DOTALL)
    statements = re.sub(
        r"'flushtracker'|PUBLICATION flushtracker", lambda name: name[0].replace("flushtracker", "shapes"), block
    )
    rig.server.execute(*statements.strip().splitlines())
    assert sorted(rig.server.execute(_CATALOG)) == before


def test_the_topics_for_snapshots_are_created_where_these_are_published(rig: CaptureRig) -> None:
    """Although capture itself reads neither: the programs that do would only miss them."""
    rig.settings["snapshot"] = {"into": "kafka"}
    assert create(rig) == 0, rig.log()
    assert "created topics for fragments, flushes, shapes, shape_changes, snapshots, snapshots_taken" in rig.log()
    assert None not in TopicAdmin(rig.config.kafka).facts().values()


def test_a_slot_that_is_gone_is_not_created_again_unless_all_shapes_begin_again(rig: CaptureRig) -> None:
    """A supervisor may pass the flag at every start, also after a restore, where a new slot may be below the acks."""
    assert create(rig) == 0
    rig.server.execute("SELECT pg_drop_replication_slot('shapes')")
    assert create(rig) == SlotError.exit_code
    assert "slot shapes is gone from the server, and source" in rig.log().splitlines()[-1]
    assert rig.server.execute(SLOTS) == []
    assert create(rig, "--new-epoch") == 0, rig.log()
    assert rig.server.execute(SLOTS) == [("shapes",)]


def test_a_missing_ack_table_is_reported_before_capture_begins(rig: CaptureRig) -> None:
    """Relative to the working directory, as a user would have it."""
    rig.settings["storage"] = "no/such"
    assert create(rig) == 0
    warning = rig.log().index(f"acks={ROOT / 'no' / 'such' / 'acks'}; storage must be the same")
    assert warning < rig.log().index("capturing source=")


def test_a_stop_ends_the_wait_for_open_transactions_and_leaves_no_slot(rig: CaptureRig) -> None:
    """The slot would keep WAL for a capture that nobody runs."""
    with closing(rig.server.connect()) as open_transaction:
        rows(open_transaction, "BEGIN")
        rows(open_transaction, "INSERT INTO users (region) VALUES ('eu')")
        process = rig.start_process("flushtracker", "capture", "--create")
        rig.wait(lambda: rig.server.execute(SLOTS) == [("shapes",)], "the slot being created")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, rig.log()
        rig.wait(lambda: rig.server.execute(SLOTS) == [], "no slot")


def test_what_exists_is_not_created_again(postgres: LocalPostgres) -> None:
    """Each function returns whether it created something."""
    connection = postgres.connect()
    publication = Publication(connection, "p", "s")
    assert [publication.create([]), create_slot(connection, "s")] == [True, True]
    assert [publication.create([]), create_slot(connection, "s")] == [False, False]
    connection.close()


@pytest.mark.parametrize(
    ("shapes", "statement", "exit_code", "message"),
    [
        ([shape("users"), shape("gone", "public.gone")], NOTHING, 2, "there is no table public.gone in this database"),
        ([shape("users", columns=["nope"])], NOTHING, 2, "nope"),
        ([shape("users", where="region = ")], NOTHING, 2, "line 4: shape 'users': where"),
        ([shape("users", where="regon = 'eu'")], NOTHING, 2, "line 4: shape 'users': public.users: where reads column"),
        (
            [{**shape("users"), "tabel": "users"}],
            NOTHING,
            2,
            "shape users: tabel is not a known key; did you mean table?",
        ),
        (
            [shape("users")],
            "CREATE PUBLICATION shapes FOR TABLE users (id)",
            7,
            "shape 'users': the publication has a row filter or a column list for table public.users",
        ),
        (
            [shape("users")],
            "CREATE PUBLICATION shapes; COMMENT ON PUBLICATION shapes IS 'managed by flushtracker capture for slot a'",
            7,
            "publication shapes is managed by flushtracker capture for slot a, which takes tables out of it",
        ),
    ],
    ids=[
        *("missing table", "missing column", "malformed where", "where reads a column that is not there"),
        *("malformed shapes file", "publication of some columns", "publication of another slot"),
    ],
)
def test_newcomer_mistypes_a_shape_and_nothing_is_created(
    rig: CaptureRig,
    capsys: pytest.CaptureFixture[str],
    shapes: list[dict[str, object]],
    statement: str,
    exit_code: int,
    message: str,
) -> None:
    """A slot without a capture keeps the server's WAL until the disk is full. The rest need not be cleaned up."""
    rig.server.execute(statement)
    rig.define(*shapes)
    assert rig.config
    assert main(["capture", "--create", "--config", str(rig.config_file)]) == exit_code
    log = capsys.readouterr().err
    assert message in log.splitlines()[-1]
    assert rig.server.execute(SLOTS) == []
    assert rig.server.execute(PUBLICATIONS) == ([] if statement is NOTHING else [("shapes",)])
    assert set(TopicAdmin(rig.config.kafka).facts(ROLES).values()) == {None}
    assert "created " not in log


def test_topics_with_wrong_settings_leave_no_slot(rig: CaptureRig) -> None:
    """They are checked before anything is created. The registry must be compacted."""
    kafka = rig.settings["kafka"]
    kafka["topic_prefix"] += "-wrong"
    create_topic(kafka["bootstrap_servers"], rig.topics["shapes"], {"cleanup.policy": "delete"})
    assert create(rig) == 2
    assert rig.server.execute(SLOTS) == []
    assert rig.server.execute(PUBLICATIONS) == []
