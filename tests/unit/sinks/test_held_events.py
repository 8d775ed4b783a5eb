"""Events of Kafka sinks that are held and read again: no shape keeps the others from what comes later."""

from typing import Final

from flushtracker.sinks.job.held_events import HeldEvents

BUSY, OTHER, THIRD = ("s", "busy"), ("s", "other"), ("s", "third")
BATCH: Final = 500


def test_a_shape_that_is_held_again_and_again_keeps_nobody_from_later_events() -> None:
    """Its table is truncated all the time: each event of it is held, and released before the next batch is read."""
    held, positions, furthest, taken, reads = HeldEvents(), {0: 0}, 0, 0, 400
    for number in range(reads):
        first, positions[0] = max(positions[0], taken), positions[0] + BATCH
        if BUSY not in held and first < positions[0]:
            # It takes one event, and the next one is held.
            taken = first + 1
            held.hold(BUSY, 0, taken)
        assert held.not_past(positions)[0] <= taken
        furthest = max(furthest, positions[0])
        held.release(BUSY)
        positions |= held.take_due(positions, 0.1 * number)
    assert furthest > reads * BATCH / 4
    assert taken > 5


def test_a_partition_is_read_again_from_the_first_event_that_is_released() -> None:
    held = HeldEvents()
    held.hold(BUSY, 0, 30)
    held.hold(OTHER, 0, 20)
    held.hold(THIRD, 1, 5)
    positions = {0: 40, 1: 9}
    for shape in (BUSY, OTHER, ("s", "unknown")):
        held.release(shape)
    assert held.not_past(positions) == {0: 20, 1: 5}
    assert held.take_due(positions, 0) == {0: 20}
    assert held.not_past({0: 20, 1: 9}) == {0: 20, 1: 5}
    assert (BUSY in held, THIRD in held) == (False, True)


def test_an_event_that_is_held_again_waits_for_as_much_that_is_new_or_the_end() -> None:
    held = HeldEvents()

    def due(position: int, at_s: float) -> dict[int, int]:
        held.hold(BUSY, 0, 20)
        held.release(BUSY)
        return held.take_due({0: position}, at_s)

    assert due(40, 0.0) == {0: 20}
    assert due(59, 0.1) == {}
    assert due(60, 0.2) == {0: 20}
    assert due(80, 0.3) == {}
    assert due(80, 0.5) == {}
    assert due(80, 0.7) == {0: 20}


def test_nothing_is_kept_of_shapes_that_have_come_and_gone() -> None:
    held = HeldEvents()
    for number in range(20_000):
        shape = "s", str(number)
        held.hold(shape, 0, number)
        held.release(shape)
        held.forget(shape)
    assert held.take_due({0: 20_000}, 0) == {}
    assert held.not_past({0: 20_000}) == {0: 20_000}
