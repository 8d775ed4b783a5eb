"""Failed shapes: when each is tried again, against a list of all failures."""

import random

import pytest

from flushtracker.errors import FlushtrackerError, PostgresError
from flushtracker.shape_log.snapshot.failed_shapes import FIRST_WAIT_MS, MOST_WAIT_MS, FailedShapes


@pytest.mark.parametrize("seed", range(50))
def test_each_failure_in_a_row_doubles_the_wait(seed: int) -> None:
    """Up to an hour, but never less than the attempt took; a snapshot, or the shape's end, forgets it."""
    rng, shapes, at_ms = random.Random(seed), FailedShapes(), 1_000  # noqa: S311  repeatable
    history: dict[str, list[tuple[int, int]]] = {}
    for _ in range(200):
        at_ms += rng.randrange(100_000)
        shape_id, draw = rng.choice("abc"), rng.random()
        if draw < 0.8:
            took_ms = rng.choice([0, 10, 20_000, 9_000_000])
            history.setdefault(shape_id, []).append((at_ms, took_ms))
            error: FlushtrackerError = PostgresError(f"failure of {shape_id} at {at_ms}")
            shapes.add("source", "public.t", {shape_id: error}, at_ms, took_ms)
        elif draw < 0.9:
            history.pop(shape_id, None)
            shapes.forget([("source", shape_id)])
        else:
            kept = set(rng.sample("abc", 2))
            history = {each: found for each, found in history.items() if each in kept}
            shapes.keep({("source", each) for each in kept})
        retries = {}
        for each, failures in history.items():
            wait_ms = min(MOST_WAIT_MS, FIRST_WAIT_MS * 2 ** (len(failures) - 1))
            retries[each] = failures[-1][0] + max(wait_ms, failures[-1][1])
        found = {failure.shape_id: failure for failure in shapes.all()}
        assert {each: failure.retry_at_ms for each, failure in found.items()} == retries, f"seed {seed}"
        assert all(found[each].since_ms == failures[0][0] for each, failures in history.items())
        assert all(str(failures[-1][0]) in found[each].reason for each, failures in history.items())
        then = at_ms + rng.randrange(10_000_000)
        assert {each for each in "abc" if shapes.is_postponed(("source", each), then)} == {
            each for each, retry in retries.items() if retry > then
        }
        assert shapes.is_any_due(then) == any(retry <= then for retry in retries.values())
        assert [failure.retry_at_ms for failure in shapes.all()] == sorted(retries.values())


def test_nothing_is_kept_of_shapes_that_are_taken() -> None:
    """However many have failed."""
    shapes = FailedShapes()
    shapes.add("source", "t", {f"s{n}": PostgresError("x") for n in range(100)}, 0, 0)
    shapes.forget([("source", f"s{n}") for n in range(100)])
    assert len(shapes) == 0
