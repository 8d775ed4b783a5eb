"""The rules of routing have a version: what earlier releases routed is routed the same, or its shapes end first."""

from collections import defaultdict
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Final

import pytest

from flushtracker.errors import SlotError
from flushtracker.events.registry_events import ShapeEntry, SourceEntry, parse_registry_entry
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.shapes import routing_version
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.routing_version import RoutingChange
from flushtracker.shapes.where import Where
from flushtracker.trials.recordings.recording import read_recording
from flushtracker.trials.recordings.replay import Replay
from flushtracker.wal.log_offset import LogOffset
from tests.support.ack_rows import AckRows
from tests.support.fake_world import BEGUN, Connection, FakeWorld, transaction
from tests.support.random_wal import SHAPES
from tests.support.routing_corpus import outcomes, read_corpus
from tests.support.simulated_job import SimulatedJob
from tests.support.wal_history import Event, Txn

SOURCE: Final = "7/1/s"
T: Final = 2000
NEEDS_A_VERSION: Final = "this routes otherwise than released: restore it, or add a RoutingChange and write this anew"
DEFINITIONS: Final = [
    ShapeDefinition("users", ("public", "users")),
    ShapeDefinition("some-users", ("public", "users"), ("id", "name"), "id BETWEEN 51 AND 300"),
    ShapeDefinition("full", ("public", "users"), where="id IN (7, 12, 15, 101, 404)", replica="full"),
    ShapeDefinition("orders", ("public", "orders"), where="id < 1000000"),
    ShapeDefinition("items", ("public", "order_items"), where="\"line/no\" LIKE '0/%' AND order_id > 100"),
    ShapeDefinition("events", ("public", "events_p1"), where="day >= 8 AND day < 12", primary_key=("id", "day")),
]
DIGESTS: Final = {
    "users": "7d656ec6453071d0",
    "some-users": "8724e932ddc34be1",
    "full": "52fbab58bb04aef0",
    "orders": "647650defcfcdec9",
    "items": "20d2cdd5a59bb60e",
    "events": "38be27642c09435d",
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    world = FakeWorld(tmp_path, monkeypatch)
    world.where = {"b": "id = 'none'"}
    world.define("a", "b")
    return world


def route_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on `where` takes every row, as after a correction of its evaluation."""
    monkeypatch.setattr(Where, "bind", lambda *_: lambda _: True)
    monkeypatch.setattr(Where, "required_values", lambda *_: {})
    monkeypatch.setattr(Where, "required_ranges", lambda *_: {})


def release_with_a_change(monkeypatch: pytest.MonkeyPatch, reason: str = "text compares otherwise") -> None:
    changes = [RoutingChange(reason, lambda definition: definition.where is not None)]
    monkeypatch.setattr(routing_version, "ROUTING_CHANGES", changes)


def entries(world: FakeWorld) -> dict[str, ShapeEntry]:
    """The last entry of each shape."""
    found = map(parse_registry_entry, world.topics["shapes"])
    return {entry.definition.id: entry for entry in found if isinstance(entry, ShapeEntry)}


def source_entry(world: FakeWorld) -> SourceEntry:
    return [each for each in map(parse_registry_entry, world.topics["shapes"]) if isinstance(each, SourceEntry)][-1]


def acknowledged(world: FakeWorld) -> int:
    """The ack of a job with one shape group that has read all topics, where writers have flushed only shape ``a``."""
    job = SimulatedJob(AckRows(), shape_groups=1)
    for fragment in world.fragments():
        job.run_batch([fragment])
    job.run_batch([FlushNotification.from_json(value) for value in world.topics["flushes"]])
    job.run_batch([FlushNotification(SOURCE, "flushed", "a", LogOffset.last_of(T), "log")])
    return job.ack_lsn(SOURCE)


class UpgradeHistory:
    """Transactions that two releases route to different shapes, one release after the other, cut and batched anew.

    The shapes in ``changed`` are those that the second release routes otherwise. With ``ends_shapes`` it removes them
    before it sends anything, as capture does. ``violations`` are acks that passed what a shape was sent, has not
    flushed, and was not ended for.
    """

    def __init__(self, seed: int, *, ends_shapes: bool) -> None:
        self.rng = rng = Random(seed)  # noqa: S311
        self.lsns = [1000 + 100 * number for number in range(rng.randint(2, 8))]
        self.changed = set(rng.sample(SHAPES, rng.randint(1, 3)))
        self.ends_shapes = ends_shapes
        first, second = [self._route() for _ in self.lsns], [self._route() for _ in self.lsns]
        for old, new in zip(first, second, strict=True):
            for before, after in zip(old, new, strict=True):
                kept = {shape: op for shape, op in before.items() if shape not in self.changed}
                other = {} if ends_shapes else {s: op for s, op in after.items() if s in self.changed}
                after.clear()
                after.update(kept | other)
        self.runs = [self._txns(first), self._txns(second)]
        self.sent: dict[str, dict[int, int]] = defaultdict(dict)
        """The last operation that each shape's writer got, by transaction."""
        self.flushed: dict[str, int] = {}
        self.job = SimulatedJob(AckRows(), shape_groups=rng.choice([1, 2]))
        self.violations: list[str] = []

    def _route(self) -> list[dict[str, int]]:
        return [{shape: 2 * index for shape in SHAPES if self.rng.random() < 0.4} for index in range(3)]

    def _txns(self, operations: list[list[dict[str, int]]]) -> list[Txn]:
        return [Txn(lsn, lsn, tuple(each)) for lsn, each in zip(self.lsns, operations, strict=True)]

    def run(self) -> None:
        """The first release sends some, the second sends all that is not confirmed, and writers flush at last."""
        self._send(self._fragments(self.runs[0], 0)[: self.rng.randint(1, 20)], self.rng.random())
        acknowledged = sum(lsn <= self.job.ack_lsn(SOURCE) for lsn in self.lsns)
        begin = self.rng.randint(0, min(acknowledged, len(self.lsns) - 1))
        if self.ends_shapes:
            end = LogOffset(self.lsns[-1], 0)
            self._run_batch([FlushNotification(SOURCE, "removed", shape, end, "log") for shape in sorted(self.changed)])
        self._send(self._fragments(self.runs[1], begin), self.rng.random())
        for shape in SHAPES:
            self._flush(shape, self.lsns[-1])

    def _fragments(self, txns: list[Txn], begin: int) -> list[FragmentEvent]:
        follows = LogOffset(self.lsns[begin] - 1, 0)
        found: list[FragmentEvent] = []
        for txn in txns[begin:]:
            cuts = [index for index in (1, 2) if self.rng.random() < 0.5]
            found += txn.fragments(cuts, follows, start=not found, source=SOURCE)
            follows = found[-1].last_log_offset
        return found

    def _send(self, fragments: list[FragmentEvent], flush_chance: float) -> None:
        for fragment in fragments:
            self._run_batch([fragment])
            for shape in fragment.shapes:
                if shape.last_offset is not None:
                    last = self.sent[shape.shape_id].get(fragment.lsn, -1)
                    self.sent[shape.shape_id][fragment.lsn] = max(last, shape.last_offset.op_offset)
            if fragment.commit is not None and self.rng.random() < flush_chance:
                self._flush(self.rng.choice(SHAPES), fragment.lsn)
            self._check()

    def _flush(self, shape: str, lsn: int) -> None:
        """The shape's writer has all up to a transaction; it takes no transaction after a later one."""
        self.flushed[shape] = max(lsn, self.flushed.get(shape, -1))
        self._run_batch([FlushNotification(SOURCE, "flushed", shape, LogOffset.last_of(lsn), "log")])

    def _run_batch(self, events: list[Event]) -> None:
        self.job.run_batch(events)

    def _check(self) -> None:
        ack = self.job.ack_lsn(SOURCE)
        for shape, transactions in self.sent.items():
            if self.ends_shapes and shape in self.changed:
                continue
            lacking = [lsn for lsn in transactions if self.flushed.get(shape, -1) < lsn <= ack]
            self.violations += [f"{shape} lacks {lsn}, but the ack is {ack}" for lsn in lacking]


def test_a_resend_of_an_upgraded_capture_reaches_no_shape_that_the_transaction_was_not_sent_to(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T was sent for a. The next release would send it for b, too: b ends before anything is sent again."""
    world.capture(Connection(1, transaction(T, 50)))
    assert world.routed(T) == [["a"]]
    release_with_a_change(monkeypatch)
    route_otherwise(monkeypatch)
    world.capture_as_another_process(["a", "b"], Connection(1, transaction(T, 50)))
    assert world.routed(T) == [["a"], ["a"]]
    assert (entries(world)["b"].ended_because, entries(world)["a"].removed_at) == ("text compares otherwise", None)
    assert source_entry(world).routing == 2
    assert acknowledged(world) == T


def test_a_resend_that_omits_a_shape_does_not_leave_it_pending(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T was sent for a and b, and b's writer has not flushed it. The next release would not send it for b."""
    with monkeypatch.context() as before:
        route_otherwise(before)
        world.capture(Connection(1, transaction(T, 50)))
    assert world.routed(T) == [["a", "b"]]
    release_with_a_change(monkeypatch)
    world.capture_as_another_process(["a", "b"], Connection(1, transaction(T, 50)))
    assert world.routed(T) == [["a", "b"], ["a"]]
    assert acknowledged(world) == T


def test_a_shape_is_ended_once(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start of the same release changes nothing, and a shape that was added since continues."""
    world.capture(Connection(1, transaction(T, 50)))
    release_with_a_change(monkeypatch)
    world.capture_as_another_process(["a", "b"], Connection(1, transaction(T, 50)))
    world.where["c"] = "id = '1'"
    world.capture_as_another_process(["a", "b", "c"], Connection(1, transaction(T, 50)))
    before, last = list(world.topics["shapes"]), source_entry(world)
    world.capture_as_another_process(["a", "b", "c"], Connection(1, transaction(T, 50)))
    # Each connection claims the source.
    (claim,) = map(parse_registry_entry, world.topics["shapes"][len(before) :])
    assert isinstance(claim, SourceEntry)
    assert claim.unclaimed() == last.unclaimed()
    assert entries(world)["c"].removed_at is None


def test_an_earlier_release_does_not_continue_what_a_later_one_has_routed(world: FakeWorld) -> None:
    world.register(replace(BEGUN, routing=2))
    with pytest.raises(SlotError, match=r"rules of version 2, but this release routes by version 1: .* Start the"):
        world.capture(Connection(1, transaction(T, 50)))
    assert world.fragments() == []


@pytest.mark.parametrize("seed", range(60))
def test_no_ack_passes_what_a_shape_lacks_in_random_histories_with_an_upgrade(seed: int) -> None:
    history = UpgradeHistory(seed, ends_shapes=True)
    history.run()
    assert history.violations == []
    assert history.job.ack_lsn(SOURCE) == history.lsns[-1]


def test_without_ending_shapes_an_ack_would_pass_what_a_shape_lacks() -> None:
    """The random histories can show it."""
    histories = [UpgradeHistory(seed, ends_shapes=False) for seed in range(20)]
    for history in histories:
        history.run()
    assert any(history.violations for history in histories)


def test_conditions_have_the_outcomes_that_were_released() -> None:
    """A condition may be refused since."""
    rows, released = read_corpus()
    found = {condition: outcomes(condition, rows) for condition in released}
    accepted = {condition: each for condition, each in found.items() if each is not None}
    assert len(accepted) > 0.9 * len(released)
    differing = [condition for condition, each in accepted.items() if each != released[condition]]
    assert not differing, NEEDS_A_VERSION


def test_a_recorded_workload_is_routed_as_it_was_released() -> None:
    """The items of each shape, with their offsets, keys and values."""
    digests = {definition.id: sha256() for definition in DEFINITIONS}
    for tick in Replay("s", DEFINITIONS).ticks(read_recording(Path(__file__).parents[2] / "recording")):
        for event in tick.shape_changes:
            for item in event.items:
                values = (item.offset, item.operation, item.key, item.value, item.old_value)
                digests[event.shape_id].update(repr(values).encode())
    assert {shape_id: digest.hexdigest()[:16] for shape_id, digest in digests.items()} == DIGESTS, NEEDS_A_VERSION
