"""Snapshots that are published to Kafka, for writers of other storages: real tables in, events out."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shape_log.snapshot import published_attempt
from tests.support.brokers import Broker
from tests.support.capture_rig import shape
from tests.support.published_snapshots import PublishingRig, publishing_rig

TABLES: Final = (
    "CREATE TABLE users (id int PRIMARY KEY, region text, name text)",
    "ALTER TABLE users REPLICA IDENTITY FULL",
    "INSERT INTO users SELECT n, CASE WHEN n % 3 = 0 THEN 'eu' END, 'user ' || n FROM generate_series(1, 10) n",
)


@pytest.fixture
def publishing(
    postgres: LocalPostgres, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> Iterator[PublishingRig]:
    """Ten users, and a capture that is not started yet."""
    with publishing_rig(postgres, broker, tmp_path, topic_name, TABLES) as publishing:
        yield publishing


def define(publishing: PublishingRig, *shapes: dict[str, Any]) -> None:
    """Define shapes, and wait until their snapshots can be taken."""
    rig = publishing.rig
    rig.define(*({"writer": "own", **each} for each in shapes))

    def are_visible() -> bool:
        registry = rig.registry()
        found = [(registry.get(each["id"]), each.get("incarnation", 1)) for each in shapes]
        return all(
            each is not None
            and each.definition.incarnation == incarnation
            and (each.starts_visible or not each.definition.snapshot)
            for each, incarnation in found
        )

    rig.wait(are_visible, "the shapes to be registered, with visible starts")


def test_the_rows_of_each_shape_are_published_once(publishing: PublishingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """All columns, chosen ones, a condition; in small events. A shape that fails is left out, and named."""
    publishing.rig.start()
    monkeypatch.setattr(published_attempt, "CHARACTERS_PER_EVENT", 100)
    shapes = [
        shape("all", "public.users"),
        shape("eu", "public.users", columns=["name"], where="region = 'eu'"),
        shape("none", "public.users", where="id > 100"),
        shape("fails", "public.users", where="10 / (id - 5) > 0"),
        shape("without", "public.users", snapshot=False),
    ]
    define(publishing, *shapes)
    with pytest.raises(DecodeError, match=r"no snapshot of fails: .*division by zero"):
        publishing.take()
    everyone = [{"id": str(n), "region": None if n % 3 else "eu", "name": f"user {n}"} for n in range(1, 11)]
    assert sorted(publishing.rows("all"), key=lambda row: int(row["id"] or 0)) == everyone
    assert publishing.rows("eu") == [{"id": f"{n}", "name": f"user {n}"} for n in (3, 6, 9)]
    assert publishing.rows("none") == []
    assert publishing.snapshot("fails")[0] is publishing.snapshot("without")[0] is None
    assert len([event for event in publishing.events() if event.shape_id == "all"]) > 3
    ended = [event for event in publishing.events() if event.end is not None]
    taken = {SnapshotEvent.from_json(value) for value in publishing.rig.values("snapshots_taken")}
    assert taken == {*ended}
    assert {event.shape_id for event in ended} == {"all", "eu", "none"}

    # The failed one is tried alone, and one that is asked for again replaces the rows before.
    before = {*publishing.rig.values("snapshots")}
    with pytest.raises(DecodeError, match="no snapshot of fails"):
        publishing.take()
    later = map(SnapshotEvent.from_json, {*publishing.rig.values("snapshots")} - before)
    assert {event.shape_id for event in later} <= {"fails"}
    publishing.rig.server.execute("DELETE FROM users WHERE id > 1")
    first, _ = publishing.snapshot("all")
    publishing.take("all", again=True)
    last, _ = publishing.snapshot("all")
    assert first is not None
    assert last is not None
    assert last.attempt > first.attempt
    assert publishing.rows("all") == everyone[:1]

    # One that begins again needs a snapshot of its incarnation, once.
    define(publishing, shapes[0] | {"incarnation": 2}, *shapes[1:])
    publishing.take("all")
    publishing.take("all")
    ends = [event for event in publishing.events() if event.shape_id == "all" and event.end is not None]
    assert [event.incarnation for event in ends] == [1, 1, 2]
    assert publishing.rows("all") == everyone[:1]


def test_a_row_that_is_too_large_for_an_event_fails_its_shape_alone(publishing: PublishingRig) -> None:
    """The others are published; larger events than allowed are divided."""
    wide = "INSERT INTO users SELECT n, repeat('x', 100000), 'wide' FROM generate_series(11, 13) n"
    huge = "INSERT INTO users VALUES (14, repeat('x', 200000), 'huge')"
    publishing.rig.server.execute(wide, huge)
    publishing.rig.start()
    define(publishing, shape("wide", "public.users", where="id < 14"), shape("huge", "public.users"))
    publishing.rig.settings["kafka"]["max_event_bytes"] = 131_072
    with pytest.raises(ShapeError, match=r"shape 'huge': a row has 2\d{5} bytes as an event, more than max_event_byt"):
        publishing.take()
    assert len(publishing.rows("wide")) == 13
    assert publishing.snapshot("huge")[0] is None
