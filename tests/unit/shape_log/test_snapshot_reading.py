"""How an attempt goes through its ranges when steps fail, shapes fail, time runs out, or Spark is lost."""

import random
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from flushtracker.config.postgres_config import TablesConfig
from flushtracker.config.secret_options import SecretOptions
from flushtracker.errors import FlushtrackerError, PostgresError, PostgresUnavailableError, SinkError
from flushtracker.postgres.range_query import PageRange
from flushtracker.shape_log.snapshot import reading
from flushtracker.shape_log.snapshot.attempt_limits import SnapshotStoppedError, TooLargeError
from flushtracker.shape_log.snapshot.read_job import ReadJob
from flushtracker.shape_log.snapshot.read_plan import ReadPlan, ShapeReads, plan_ranges
from flushtracker.shape_log.snapshot.read_ranges import ShapeReadError
from flushtracker.shape_log.snapshot.reading import Reading

_CONFIG = TablesConfig(SecretOptions({}), "shapes", max_attempt_ms=1_000_000)


def plan_of(shapes: int, ranges: int) -> ReadPlan:
    reads = tuple(ShapeReads(f"s{n}", ()) for n in range(shapes))
    return ReadPlan({}, "1", 1, "source", (), reads, ((0, PageRange(0, None)),) * ranges)


class World:
    """Stands in for Spark and the server: each step has an outcome, and takes ``range_s`` for each of its ranges."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcome: Callable[[ReadPlan, range], None]) -> None:
        self.seconds, self.range_s, self.read, self.is_open = 0.0, 1.0, list[int](), True
        self.started = 0
        world = self

        class Job:
            """As :class:`ReadJob`; a file is a range, with the shapes that it has rows of."""

            def __init__(self, _spark: object, _files: object, plan: ReadPlan, numbers: range, _: int) -> None:
                self.plan, self.numbers, self.is_done = plan, numbers, False

            def start(self) -> None:
                world.started += 1

            def wait(self, _: float) -> bool:
                self.is_done, was_done = True, self.is_done
                return was_done

            def cancel(self) -> None:
                world.seconds += world.range_s * len(self.numbers)

            def written(self) -> list[Any]:
                outcome(self.plan, self.numbers)
                world.read += self.numbers
                shapes = [shape.shape_id for shape in self.plan.shapes]
                return [SimpleNamespace(rows=1, number=number, shapes=shapes) for number in self.numbers]

        def require_open(_: object) -> None:
            if not world.is_open:
                raise PostgresUnavailableError("lost")

        monkeypatch.setattr(reading, "ReadJob", Job)
        monkeypatch.setattr(reading, "require_open", require_open)
        monkeypatch.setattr(reading, "_RETRY_PAUSE_S", 0.0)

    def reading(self, plan: ReadPlan) -> Reading:
        progress: Any = self
        nothing: Any = None
        return Reading(nothing, nothing, plan, nothing, progress)

    def step_done(self, _plan: ReadPlan, done: int, _rows: int) -> None:
        """As :class:`Progress`."""
        assert sorted(self.read) == list(range(done))

    def poll(self, _: ReadPlan) -> None:
        """As :class:`Progress`."""


@pytest.mark.parametrize("seed", range(100))
def test_whatever_fails_each_range_is_read_once_for_the_shapes_that_do_not(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that failed is read again, those before it are not; a shape that failed stays out."""
    rng, bad, in_a_row = random.Random(seed), set[str](), [0]  # noqa: S311  repeatable
    shares = rng.choice([(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.3, 0.3)])

    def outcome(plan: ReadPlan, _: range) -> None:
        if in_a_row[0] < 2 and rng.random() < shares[0]:
            in_a_row[0] += 1
            raise rng.choice([PostgresUnavailableError, SinkError])("for a while")
        in_a_row[0] = 0
        if len(plan.shapes) > 1 and rng.random() < shares[1]:
            chosen = rng.sample([shape.shape_id for shape in plan.shapes], 1)
            bad.update(chosen)
            raise ShapeReadError({shape_id: PostgresError(f"{shape_id} fails") for shape_id in chosen})

    world, ranges = World(monkeypatch, outcome), rng.randrange(1, 400)
    world.range_s = 0.01
    found = world.reading(plan_of(5, ranges))
    files: list[Any] = found.run(_CONFIG, Event())
    assert [file.number for file in files] == world.read == list(range(ranges))
    kept = {f"s{n}" for n in range(5)} - bad
    assert {shape.shape_id for shape in found.plan.shapes} == kept
    assert {shape_id: str(error) for shape_id, error in found.failed.items()} == {name: f"{name} fails" for name in bad}
    # What must be taken out of the files is known.
    stale = {shape_id for file in files for shape_id in file.shapes} - kept
    assert stale == found.incomplete


def fails(error: FlushtrackerError) -> Callable[[ReadPlan, range], None]:
    def outcome(_: ReadPlan, numbers: range) -> None:
        if numbers.start:
            raise error

    return outcome


def test_step_that_always_fails_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """After three tries, with its own error."""
    world = World(monkeypatch, fails(PostgresUnavailableError("a lock is taken")))
    with pytest.raises(PostgresUnavailableError, match="a lock is taken"):
        world.reading(plan_of(1, 100)).run(_CONFIG, Event())
    assert world.started == 4


def test_lost_snapshot_ends_the_attempt_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other connection could ever see the same rows again."""

    def outcome(*_: object) -> None:
        world.is_open = False
        raise PostgresUnavailableError("a connection was lost")

    world = World(monkeypatch, outcome)
    with pytest.raises(PostgresUnavailableError, match=r"^lost"):
        world.reading(plan_of(1, 100)).run(_CONFIG, Event())
    assert world.started == 1


def test_attempt_for_many_shapes_that_would_take_too_long_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a tenth of its time, so that little is lost before it is divided; if there is one shape, it goes on."""
    world = World(monkeypatch, lambda *_: None)
    world.range_s = 15.0
    with pytest.raises(TooLargeError, match=r"ranges were read for 2 shapes after .* min, so .* snapshot.max_attempt"):
        world.reading(plan_of(2, 100)).run(_CONFIG, Event())
    assert 100 <= world.seconds < 300
    world.seconds, world.read = 0.0, []
    with pytest.raises(TooLargeError, match="for 1 shapes after"):
        world.reading(plan_of(1, 100)).run(_CONFIG, Event())
    assert world.seconds > 1_000
    world.seconds, world.read, world.range_s = 0.0, [], 9.0
    assert len(world.reading(plan_of(2, 100)).run(_CONFIG, Event())) == 100


def test_stop_ends_it_without_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is canceled."""
    world, stop = World(monkeypatch, lambda *_: None), Event()
    stop.set()
    with pytest.raises(SnapshotStoppedError):
        world.reading(plan_of(1, 1)).run(_CONFIG, stop)
    assert world.seconds > 0


def test_job_whose_jvm_is_lost_has_written_nothing() -> None:
    """Its error is no Java exception; without it, the range would count as read."""

    def fail(*_: object, **__: object) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(setJobGroup=fail))
    nothing: Any = None
    job = ReadJob(spark, nothing, ReadPlan({}, "1", 1, "s", (), (), plan_ranges([1], 180_000)), range(1), 1)
    job.start()
    assert job.wait(10)
    with pytest.raises(Py4JNetworkError):
        job.written()
