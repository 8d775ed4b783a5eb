"""What executors are told to read, in which steps, and what they say when they cannot."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from flushtracker.errors import FlushtrackerError, PostgresError, PostgresUnavailableError
from flushtracker.postgres.range_query import PageRange
from flushtracker.shape_log.snapshot.read_plan import (
    PAGES_PER_RANGE,
    STEP_S,
    ReadPlan,
    ReadRange,
    ShapeReads,
    next_step,
    plan_ranges,
)
from flushtracker.shape_log.snapshot.read_ranges import RangeError, failing, range_failures
from flushtracker.wal.log_offset import OP_INFINITY


def shapes_of(*shape_ids: str) -> tuple[ShapeReads, ...]:
    return tuple(ShapeReads(shape_id, ()) for shape_id in shape_ids)


def planned(pages: list[int]) -> list[ReadRange]:
    plan = ReadPlan({}, "1", 1, "s", (), shapes_of("a", "b"), plan_ranges(pages, 180_000))
    return [plan.range(number) for number in range(len(plan.ranges))]


def test_each_range_of_each_table_is_read_once() -> None:
    """However many shapes there are."""
    first, last = PageRange(0, PAGES_PER_RANGE), PageRange(PAGES_PER_RANGE, None)
    ranges = planned([PAGES_PER_RANGE + 1, 0])
    assert [(each.table, each.pages) for each in ranges] == [(0, first), (0, last), (1, PageRange(0, None))]
    assert planned([]) == []


def test_offsets_of_rows_are_unique() -> None:
    """A range has fewer rows than there are offsets between two of them, also in the largest table, of 2**32 pages."""
    most_rows = PAGES_PER_RANGE * 32_768 // 28
    offsets = [each.first_op_offset for each in planned([10 * PAGES_PER_RANGE, 1])]
    assert all(later - earlier > most_rows for earlier, later in pairwise(offsets))
    assert (2**32 // PAGES_PER_RANGE) * (offsets[1] - offsets[0]) + most_rows < OP_INFINITY


@pytest.mark.parametrize("connections", [1, 2, 7])
@pytest.mark.parametrize("ranges_per_s", [0.01, 1.0, 50.0, 5_000.0])
def test_steps_have_each_range_once_and_take_about_their_time(connections: int, ranges_per_s: float) -> None:
    """Whatever the rate: it is unknown at first, and a step is never less than a range for each connection."""
    done, seconds, ranges, times = 0, 0.0, 10_000, list[float]()
    while done < ranges:
        step = next_step(done, ranges, seconds, connections)
        assert step.start == done
        assert len(step) >= min(connections, ranges - done)
        times.append(len(step) / ranges_per_s)
        done, seconds = step.stop, seconds + times[-1]
    assert done == ranges
    assert all(each <= max(STEP_S, 4 * connections / ranges_per_s) for each in times)
    if seconds > 20 * STEP_S and ranges_per_s * STEP_S > connections:
        assert max(times) > STEP_S / 2


def test_plan_shows_no_password() -> None:
    """It travels to executors, and may get into a log."""
    assert "hunter2" not in repr(ReadPlan({"password": "hunter2"}, "1", 1, "s", (), (), ()))


def test_plan_without_a_shape_has_the_others() -> None:
    """Its ranges stay."""
    plan = ReadPlan({}, "1", 1, "s", (), shapes_of("a", "b", "c"), plan_ranges([1], 180_000))
    assert [shape.shape_id for shape in plan.without({"b"}).shapes] == ["a", "c"]
    assert plan.without({"b"}).ranges == plan.ranges


def test_errors_of_executors_keep_their_shapes_and_kinds() -> None:
    """Spark shows a Python error's text in the middle of its own."""
    error = RangeError({'é "a"': PostgresError('é: "x"'), "b": PostgresError("y")})
    found = range_failures(f"Job aborted: PythonException: Traceback (most recent call last):\n  {error}\n\tat x")
    assert [(shape_id, type(each), str(each)) for shape_id, each in found.items()] == [
        ('é "a"', PostgresError, 'é: "x"'),
        ("b", PostgresError, "y"),
    ]
    (lost,) = range_failures(str(RangeError({None: PostgresUnavailableError("lost")}))).values()
    assert (type(lost), str(lost)) == (PostgresUnavailableError, "lost")
    assert range_failures("java.io.IOException: disk full") == {}


@pytest.mark.parametrize("seed", range(20))
def test_the_shapes_that_fail_are_found_among_many(seed: int) -> None:
    """Exactly these, each with its own error, and with few queries if they are few."""
    rng = random.Random(seed)  # noqa: S311  repeatable
    shapes = shapes_of(*(f"s{n}" for n in range(rng.randrange(1, 600))))
    bad = {each.shape_id for each in rng.sample(shapes, min(len(shapes), rng.randrange(6)))}
    queries = 0

    def probe(part: Sequence[ShapeReads]) -> None:
        nonlocal queries
        queries += 1
        if found := [each.shape_id for each in part if each.shape_id in bad]:
            raise PostgresError(f"{found[0]} divides by zero")

    found = dict[str, FlushtrackerError](failing(shapes, probe))
    assert {shape_id: str(error) for shape_id, error in found.items()} == {
        shape_id: f"{shape_id} divides by zero" for shape_id in bad
    }
    assert queries <= 1 + 2 * len(bad) * len(shapes).bit_length()


def test_a_lost_connection_blames_no_shape() -> None:
    """What was found before it is not known to be all."""

    def probe(part: Sequence[ShapeReads]) -> None:
        raise PostgresError("no") if len(part) > 1 else PostgresUnavailableError("lost")

    with pytest.raises(PostgresUnavailableError, match="lost"):
        list(failing(shapes_of("a", "b"), probe))
