"""Capture over a major upgrade of a real server, from PostgreSQL 17 or 16 to 18, by the real pg_upgrade."""

import random
import signal
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from flushtracker.errors import PostgresError, SlotError
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.local.postgres import LocalPostgres
from flushtracker.operate.status.slot_view import SlotView
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.background import Background
from tests.support.capture_rig import INSERT_USER, CaptureRig, RigOn, shape
from tests.support.major_upgrade import old_server, system_id, upgraded
from tests.support.seeds import every
from tests.support.waiting import wait_until

_DROP_SLOT = "SELECT pg_drop_replication_slot('shapes')"
_CREATE_SLOT = "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')"
_DEADLINE_S = 60
_SHAPES = 4
_TABLES = (
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "ALTER TYPE mood ADD VALUE 'mad' BEFORE 'glad'",
    "CREATE TABLE moods (id int PRIMARY KEY, m mood, gone int)",
    "ALTER TABLE moods DROP COLUMN gone",
    "ALTER TABLE moods ADD COLUMN later int DEFAULT 7",
    "ALTER TABLE moods REPLICA IDENTITY FULL",
    "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (200)",
    "CREATE TABLE altered (id int PRIMARY KEY)",
)
_LOAD = (
    INSERT_USER,
    "INSERT INTO parts SELECT number FROM (SELECT count(*) / 2 AS number FROM parts) n",
    "INSERT INTO parts SELECT number + 100 FROM (SELECT count(*) / 2 AS number FROM parts) n",
    "INSERT INTO moods SELECT count(*), 'sad' FROM moods",
    "INSERT INTO altered SELECT count(*) FROM altered",
)


@pytest.fixture
def old_version() -> int:
    """The first one of which pg_upgrade keeps slots."""
    return 17


@pytest.fixture
def rig(servers: ExitStack, postgres_folder: Path, old_version: int, rig_on: RigOn) -> CaptureRig:
    """A server of the earlier version, which has what :meth:`CaptureRig.create_with_users` creates."""
    old = servers.enter_context(old_server(postgres_folder / "old", old_version))
    rig = rig_on(old)
    rig.settings["kafka"]["retry_timeout"] = "5 seconds"
    rig.create_with_users()
    return rig


def shape_on(table: str) -> dict[str, Any]:
    return shape(table, f"public.{table}")


def drop_slot(server: LocalPostgres) -> None:
    """Drop the slot, once nobody reads it."""
    active = "SELECT 1 FROM pg_replication_slots WHERE active"
    wait_until(lambda: not server.execute(active), "the slot is free", _DEADLINE_S)
    server.execute(_DROP_SLOT)


class Acker(Background):
    """Acknowledges whatever was published of the first source, as the tracker does; a context manager."""

    def __init__(self, rig: CaptureRig) -> None:
        super().__init__(self._play)
        self._rig = rig
        self._source = f"{system_id(rig.server)}/1/shapes"
        self.acks: list[int] = []

    def _play(self) -> None:
        topic = self._rig.topics["fragments"]
        table = AckTable(str(self._rig.acks))
        table.fence_others()
        with closing(TopicReader(self._rig.config.kafka)) as reader:
            while not self.stopping.wait(0.1):
                events = map(FragmentEvent.from_json, reader.values(topic))
                last = max((event.lsn for event in events if event.source == self._source), default=0)
                if last > max(self.acks, default=0):
                    table.append(AckRow(self._source, 0, last, last, 0, None, None, self._rig.now()))
                    self.acks.append(last)


def drain(rig: CaptureRig) -> None:
    """Run capture until it has ended by itself, with the slot sealed."""
    capture = rig.start(before_upgrade=True)
    capture.thread.join(_DEADLINE_S)
    assert not capture.thread.is_alive()
    capture.stop()


def upgrade(rig: CaptureRig, servers: ExitStack, folder: Path) -> LocalPostgres:
    """Stop the server and upgrade it; returns the new one, which runs, and which capture finds at the same address."""
    rig.server.stop()
    rig.server = servers.enter_context(upgraded(rig.server, folder))
    return rig.server


def published_ids(rig: CaptureRig, shape_id: str) -> list[int]:
    return sorted(int(str(item.value and item.value["id"])) for item in rig.items(shape_id))


def ids(rig: CaptureRig, table: str) -> list[int]:
    return sorted(number for (number,) in rig.server.execute(f"SELECT id FROM {table}"))  # noqa: S608  a constant


@every(3, 0)
def test_the_source_continues_over_an_upgrade_that_has_kept_the_slot(
    rig: CaptureRig, servers: ExitStack, postgres_folder: Path
) -> None:
    """Under load, with kills, and with what others write on the new server before capture is there.

    Shapes live on, on tables whose catalog rows pg_upgrade has all written anew. What was altered since ends its shape.
    """
    rig.server.execute(*_TABLES)
    rig.define(shape("users"), shape("moods", "public.moods", where="m = 'sad'"), *map(shape_on, ("parts", "altered")))
    rng = random.Random(3)  # noqa: S311  reproducible
    with Acker(rig) as acker:
        capture = rig.start()
        rig.wait(lambda: len(rig.registry()) == _SHAPES, "the shapes")
        before, first = system_id(rig.server), rig.source()
        for _ in range(20):
            rig.server.execute(*_LOAD)
        capture.stop()
        rig.server.execute(*[INSERT_USER] * 20)
        drain(rig)
        old = rig.server
        new = upgrade(rig, servers, postgres_folder / "new")
        new.execute(INSERT_USER, "INSERT INTO moods VALUES (1000, 'sad')", "INSERT INTO parts VALUES (50), (150)")
        new.execute("ALTER TABLE altered ALTER COLUMN id TYPE bigint")
        new.execute("CREATE TABLE more PARTITION OF parts FOR VALUES FROM (200) TO (300)")
        for _ in range(3):
            process = rig.start_process()
            Event().wait(rng.uniform(1, 4))
            process.send_signal(signal.SIGKILL)
            process.wait(_DEADLINE_S)
        capture = rig.start()
        rig.execute_and_wait(INSERT_USER, "INSERT INTO parts VALUES (60), (160)", "TRUNCATE moods")
        rig.wait(lambda: rig.registry()["altered"].removed_at, "the end of the shape on the altered table")
        lsn = max(event.lsn for event in rig.fragments())
        rig.wait(lambda: rig.confirmed_lsn() > lsn, "the slot past everything")
        capture.stop()
    assert {event.source for event in rig.fragments()} == {first} == {rig.source()}
    assert system_id(new) != before
    assert [entry.definition.id for entry in rig.registry().values() if entry.removed_at is not None] == ["altered"]
    assert published_ids(rig, "users") == ids(rig, "users")
    assert published_ids(rig, "parts") == ids(rig, "parts")
    assert rig.operations("moods") == [*["insert"] * 21, "truncate"]
    assert acker.acks == sorted(acker.acks)
    assert not new.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name <> 'shapes'")
    new.stop()
    old.start()
    assert f"{first} on server" in rig.start().failure()


@every(3, 1)
def test_what_commits_after_the_mark_makes_pg_upgrade_refuse(
    rig: CaptureRig, servers: ExitStack, postgres_folder: Path
) -> None:
    """Nothing is lost: the old server is started again, captured, and sealed again."""
    with Acker(rig):
        rig.server.execute(INSERT_USER)
        drain(rig)
        first, old = rig.source(), rig.server
        old.execute(INSERT_USER)
        with pytest.raises(PostgresError, match="logical replication slots that cannot be upgraded"):
            upgrade(rig, servers, postgres_folder / "refused")
        old.start()
        drain(rig)
        upgrade(rig, servers, postgres_folder / "new")
        rig.capture_once()
    assert {event.source for event in rig.fragments()} == {first}
    assert published_ids(rig, "users") == ids(rig, "users")


@every(3, 2)
def test_a_capture_of_the_old_server_after_its_seal_ends_the_proof(
    rig: CaptureRig, servers: ExitStack, postgres_folder: Path
) -> None:
    """As when it is started again by mistake: what it publishes is on no new server, and would stay in the shapes."""
    with Acker(rig):
        rig.server.execute(INSERT_USER)
        drain(rig)
        first, before, old = rig.source(), system_id(rig.server), rig.server
        new = upgrade(rig, servers, postgres_folder / "new")
        new.stop()
        old.start()
        rig.server = old
        rig.capture_once()
        old.stop()
        new.start()
        rig.server = new
        assert "capture was started on the old server again" in rig.start().failure()
        rig.capture_once(upgraded_from=before)
    assert rig.source() == f"{first}/1"


def test_a_slot_that_was_created_after_the_upgrade_is_not_taken_for_the_one_before(
    rig: CaptureRig, servers: ExitStack, postgres_folder: Path
) -> None:
    """As a tool may do; it misses what was written before. Told so, capture begins all shapes again."""
    with Acker(rig):
        rig.server.execute(INSERT_USER)
        drain(rig)
        first, before = rig.source(), system_id(rig.server)
        new = upgrade(rig, servers, postgres_folder / "new")
        new.execute(_DROP_SLOT, INSERT_USER, _CREATE_SLOT)
        assert "changes were made before its slot begins" in rig.start().failure()
        rig.capture_once(upgraded_from=before)
    assert rig.source() == f"{first}/1"


def test_an_upgraded_server_is_no_source_of_its_own(rig: CaptureRig, servers: ExitStack, postgres_folder: Path) -> None:
    """Even with a slot that was created on it: it lacks what was written before, and readers would find two sources.

    Once the new server is captured, the old cluster is refused, as when it is started again by mistake.
    """
    rig.capture_once(acknowledges=True)
    old, first = rig.server, rig.source()
    before = system_id(old)
    old.execute(INSERT_USER)
    drop_slot(old)
    old.stop()
    rig.server = servers.enter_context(upgraded(old, postgres_folder / "new"))
    rig.server.execute(_CREATE_SLOT)
    after = system_id(rig.server)
    assert after != before
    refusal = rig.start().failure()
    assert refusal.startswith("SlotError")
    assert f"{first} on server {before}" in refusal
    rig.capture_once(upgraded_from=before)
    rig.capture_once(acknowledges=True)
    assert rig.source() == f"{first}/1"
    assert SlotView(rig.config, ()).query().source == f"{first}/1"
    rig.server.stop()
    old.start()
    old.execute(_CREATE_SLOT)
    assert f"{first}/1 on server {after}" in rig.start().failure()


@pytest.mark.parametrize("old_version", [16])
def test_from_a_version_whose_slots_pg_upgrade_does_not_keep_all_shapes_begin_again(
    rig: CaptureRig, servers: ExitStack, postgres_folder: Path
) -> None:
    """Both programs say so before, the slot does not make pg_upgrade refuse, and nothing is captured unless told."""
    rig.capture_once(acknowledges=True)
    old, first, before = rig.server, rig.source(), system_id(rig.server)
    assert f"start capture with --create --upgraded-from {before}" in rig.start(before_upgrade=True).failure()
    assert rig.start_process("flushtracker", "status", "--safe-to-upgrade").wait(_DEADLINE_S) == 1
    assert "pg_upgrade does not keep slots of PostgreSQL 16" in rig.log()
    old.execute(INSERT_USER)
    new = upgrade(rig, servers, postgres_folder / "new")
    assert new.execute("SHOW server_version")[0][0].startswith("18.")
    assert not new.execute("SELECT 1 FROM pg_replication_slots")
    assert "--upgraded-from on an upgraded server" in rig.start().failure()
    refused = rig.start_process("flushtracker", "capture", "--create")
    assert refused.wait(_DEADLINE_S) == SlotError.exit_code
    assert f"{first} on server {before}" in rig.log()
    assert not new.execute("SELECT 1 FROM pg_replication_slots")
    new.execute(INSERT_USER, _CREATE_SLOT)
    rig.capture_once(acknowledges=True, upgraded_from=before)
    assert rig.source() == f"{first}/1"
    after = system_id(new)
    new.stop()
    old.start()
    assert f"{first}/1 on server {after}" in rig.start().failure()
