"""Capture over a major upgrade of a real server, from PostgreSQL 17 to 18, by the real pg_upgrade."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event, Thread

import pytest

from flushtracker.delta.acks.table import AckRow, AckTable
from flushtracker.errors import PostgresError
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.local.postgres import LocalPostgres
from flushtracker.operate.status.slot_view import SlotView
from tests.support.brokers import Broker
from tests.support.capture_rig import INSERT_USER, CaptureRig
from tests.support.major_upgrade import old_server, upgraded
from tests.support.waiting import wait_until

_DROP_SLOT = "SELECT pg_drop_replication_slot('shapes')"
_CREATE_SLOT = "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')"
_DEADLINE_S = 60


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    """Stops the servers that a test has started."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def rig(
    servers: ExitStack, broker: Broker, postgres_folder: Path, tmp_path: Path, topic_name: Callable[[str], str]
) -> Iterator[CaptureRig]:
    """A server of the earlier version, which has what :meth:`CaptureRig.create_with_users` creates."""
    rig = CaptureRig(
        servers.enter_context(old_server(postgres_folder / "old")), broker.bootstrap_servers, tmp_path, topic_name
    )
    rig.settings["kafka"]["retry_timeout"] = "5 seconds"
    rig.create_with_users()
    yield rig
    rig.close()


def system_id(server: LocalPostgres) -> str:
    ((found,),) = server.execute("SELECT system_identifier::text FROM pg_control_system()")
    return str(found)


def drop_slot(server: LocalPostgres) -> None:
    """Drop the slot, once nobody reads it."""
    active = "SELECT 1 FROM pg_replication_slots WHERE active"
    wait_until(lambda: not server.execute(active), "the slot is free", _DEADLINE_S)
    server.execute(_DROP_SLOT)


class Acker:
    """Acknowledges whatever was published of the first source, as the tracker does; a context manager."""

    def __init__(self, rig: CaptureRig) -> None:
        self._rig = rig
        self._source = f"{system_id(rig.server)}/1/shapes"
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.acks: list[int] = []

    def __enter__(self) -> "Acker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_DEADLINE_S)

    def _run(self) -> None:
        topic = self._rig.settings["kafka"]["topics"]["fragments"]
        table = AckTable(str(self._rig.acks))
        table.fence_others()
        with closing(TopicReader(self._rig.config.kafka)) as reader:
            while not self._stop.wait(0.1):
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
        capture = rig.start()
        rig.execute_and_wait(INSERT_USER)
        capture.stop()
    assert {event.source for event in rig.fragments()} == {first}
    assert published_ids(rig, "users") == ids(rig, "users")


def test_an_upgraded_server_is_no_source_of_its_own(rig: CaptureRig, servers: ExitStack, postgres_folder: Path) -> None:
    """Even with a slot that was created on it: it lacks what was written before, and readers would find two sources.

    Once the new server is captured, the old cluster is refused, as when it is started again by mistake.
    """
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    rig.acknowledge_all()
    capture.stop()
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
    capture = rig.start(upgraded_from=before)
    rig.execute_and_wait(INSERT_USER)
    capture.stop()
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    rig.acknowledge_all()
    capture.stop()
    assert rig.source() == f"{first}/1"
    assert SlotView(rig.config, ()).look().source == f"{first}/1"
    rig.server.stop()
    old.start()
    old.execute(_CREATE_SLOT)
    assert f"{first}/1 on server {after}" in rig.start().failure()
