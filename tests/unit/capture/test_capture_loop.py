"""``CaptureLoop`` without a server or brokers: what it keeps from one connection to the next."""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from flushtracker.errors import SlotError
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from tests.support.fake_world import (
    BEGUN,
    CONFIRMED,
    Connection,
    FakeWorld,
    LiveConnection,
    messages_alone,
    published,
    shape_entry,
    transaction,
)

DEADLINE_S: Final = 10.0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    """No source was captured yet."""
    return FakeWorld(tmp_path, monkeypatch)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_nothing_is_confirmed_over_a_stream_of_another_server(world: FakeWorld) -> None:
    """The slot's position was read from the server before the failover, and is ahead of the new server's slot."""
    astray = Connection(1, transaction(2000, 50), is_on_the_same_server=False)
    world.capture(astray, Connection(1, transaction(2000, 50)))
    assert astray.flushed == []
    assert len(world.fragments()) == 1


def test_a_shape_that_another_process_added_in_between_is_routed_to(world: FakeWorld) -> None:
    """This process's own shapes file does not have it, and has not changed."""
    world.define("users")
    first, second = Connection(1, transaction(2000, 50)), Connection(1)

    def another_process_captures() -> None:
        if not second.frames:
            world.register(shape_entry("late", 2500))
            world.topics["fragments"].append(published("7/1/s", 3000, 60))
            second.frames = [*transaction(2000, 50), *transaction(3000, 60), *transaction(4000, 70)]

    first.at_the_end = another_process_captures
    world.capture(first, second)
    assert world.routed(2000) == [["users"], ["users"]]
    assert world.routed(3000)[-1] == ["late", "users"]
    assert world.routed(4000) == [["late", "users"]]
    assert world.topics["flushes"] == []


def test_a_shape_that_another_process_removed_in_between_is_not_routed_to(world: FakeWorld) -> None:
    """Its id stays in this process's shapes file; the tracker no longer waits for it."""
    world.define("users", "gone")
    first, second = (
        Connection(1, transaction(2000, 50)),
        Connection(1, [*transaction(2000, 50), *transaction(4000, 70)]),
    )
    first.at_the_end = lambda: world.register(shape_entry("gone", CONFIRMED - 1, removed_at=3000))
    world.capture(first, second)
    assert world.routed(4000) == [["users"]]


def test_what_another_process_published_last_must_be_resent(world: FakeWorld) -> None:
    """Otherwise the server has another history than the one that was published, even if ours was resent."""
    first, *others = (
        Connection(1, transaction(2000, 50)),
        *(Connection(1, [*transaction(2000, 50), *transaction(4000, 70)]) for _ in range(2)),
    )
    first.at_the_end = lambda: world.topics["fragments"].append(published("7/1/s", 3000, 60))
    with pytest.raises(SlotError, match=r"transaction 60 at 0/BB8 .* was published before, but the server sends"):
        world.capture(first, *others)
    assert [each.has_messages for each in (first, *others)] == [False, False, True]


def test_what_was_published_last_may_be_a_transaction_of_messages_alone(world: FakeWorld) -> None:
    """The server sends it only if asked; then it is not needed again.

    Others of that kind are not published, since whether the server sends them depends on the connection.
    """
    without = [*transaction(2000, 50), *transaction(4000, 70)]
    with_all = [*messages_alone(1500, 40), *transaction(2000, 50), *messages_alone(3000, 60), *transaction(4000, 70)]
    first, second = Connection(1, transaction(2000, 50)), Connection(1, without)
    first.at_the_end = lambda: world.topics["fragments"].append(published("7/1/s", 3000, 60))
    third = Connection(1, [*with_all, *messages_alone(5000, 80)], until=lambda: False)
    last = Connection(1, at_the_end=world.stop.set)
    third.after_frames = partial(world.acks.update, {"7/1/s": 5047})
    world.capture(first, second, third, last)
    assert [each.has_messages for each in (first, second, third, last)] == [False, False, True, False]
    assert [event.lsn for event in world.fragments() if event.xid is not None] == [2000, 3000, 2000, 2000, 3000, 4000]


def test_an_epoch_that_another_process_began_is_continued(world: FakeWorld) -> None:
    """The old epoch's shapes and acks belong to a history that was given up."""
    first, second = Connection(1, transaction(2000, 50)), Connection(1, transaction(4000, 70))
    first.at_the_end = lambda: world.register(replace(BEGUN, source="7/1/s/1"))
    world.capture(first, second)
    assert [event.source for event in world.fragments()] == ["7/1/s", "7/1/s/1"]


def test_a_reconnect_keeps_the_shapes_if_nobody_changed_them(world: FakeWorld) -> None:
    """A million shapes are not compiled again, and old removals are not published again."""
    world.register(shape_entry("users"), shape_entry("gone", removed_at=1500), BEGUN)
    world.define("users")
    first, second = Connection(1, transaction(2000, 50)), Connection(1, transaction(2000, 50))
    world.capture(first, second)
    assert world.routed(2000) == [["users"], ["users"]]
    assert len(world.topics["flushes"]) == 1


@pytest.mark.parametrize(
    ("what", "lost"),
    [
        ("entry of a shape", "shape users"),
        ("source's own entry", "the source's own entry"),
        ("whole registry", "the source's own entry, shape users"),
    ],
)
def test_a_registry_that_was_lost_while_capture_runs_is_a_final_error(world: FakeWorld, what: str, lost: str) -> None:
    """Starting over with it would register the shapes a second time, from a later position."""
    world.define("users")
    first = Connection(1, transaction(2000, 50))

    def lose() -> None:
        kept = {"entry of a shape": b'"source"', "source's own entry": b'"shape"', "whole registry": b"nothing"}[what]
        world.topics["shapes"] = [entry for entry in world.topics["shapes"] if b'"type":' + kept in entry]

    first.at_the_end = lose
    with pytest.raises(SlotError, match=f"registry no longer has {lost}, which this process had registered"):
        world.capture(first, Connection(1))


def test_a_registry_without_the_table_of_a_live_shape_is_a_final_error(world: FakeWorld) -> None:
    """What happened to the table since is unknown. Of a shape that is removed it no longer matters."""
    shapes = [shape_entry("users"), shape_entry("gone", removed_at=3000)]
    world.topics["shapes"] = [text.encode() for text in (BEGUN.to_json(), *(shape.to_json() for shape in shapes))]
    with pytest.raises(SlotError, match="the shape registry has no table for users: its topic was lost or replaced"):
        world.capture(Connection(1))


def test_the_publisher_is_closed_after_a_final_error(world: FakeWorld) -> None:
    """Otherwise it would go on sending in the background."""
    world.acks["7/1/s"] = 4000
    with pytest.raises(SlotError, match="no entry in the shape registry"):
        world.capture(Connection(1))
    assert world.is_closed


def test_a_wrong_path_of_the_ack_table_is_reported_at_the_start(
    world: FakeWorld, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Once, although there are two connections: capture itself works, but its slot is never confirmed."""
    world.exists = False
    world.capture(Connection(1, transaction(2000, 50)), Connection(1, transaction(2000, 50)))
    warnings = [message for message in caplog.messages if "no ack table" in message]
    assert len(warnings) == 1
    assert f"acks={tmp_path / 'acks'};" in warnings[0]


@pytest.mark.parametrize("seed", range(10))
def test_whichever_process_captures_a_transaction_goes_to_the_same_shapes(world: FakeWorld, seed: int) -> None:
    """Two processes take turns, and add shapes; the oracle is where each shape's registry entry says that it starts.

    They have one shapes file, or the first has an old copy.
    """
    rng = random.Random(seed)  # noqa: S311  a reproducible history
    world.wal_ends_at = CONFIRMED
    shape_ids = ["shape-0"]
    world.define(*shape_ids)
    have_one_file = rng.random() < 0.5

    def add_shape() -> None:
        shape_ids.append(f"shape-{len(shape_ids)}")
        if have_one_file:
            world.define(*shape_ids)

    def take_turns() -> None:
        for _ in range(rng.randrange(3)):
            if rng.random() < 0.7:
                add_shape()
            connections = [LiveConnection(world, rng.randrange(3)) for _ in range(rng.randrange(1, 3))]
            world.capture_as_another_process(shape_ids, *connections)
        if rng.random() < 0.3:
            add_shape()

    world.capture(*[LiveConnection(world, rng.randrange(4), take_turns) for _ in range(5)])
    entries = [parse_registry_entry(value) for value in world.topics["shapes"]]
    starts = {entry.definition.id: entry.starts_after.tx_offset for entry in entries if isinstance(entry, ShapeEntry)}
    for lsn in world.lsns:
        expected = sorted(shape_id for shape_id, starts_after in starts.items() if starts_after < lsn)
        assert {tuple(sorted(shapes)) for shapes in world.routed(lsn)} == {tuple(expected)}
