"""What happens in a simulation: a list of actions, and the sizes of everything, all from one seed."""

from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from tests.support.simulated_job import DEFAULT_MAX_PENDING


class Action(NamedTuple):
    """What happens next, by the name of a method of :class:`Simulation`."""

    name: str
    seed: int


_WEIGHTS: Final = {
    "publish": 30,
    "flush": 30,
    "run_batch": 35,
    "repeat_flushes": 3,
    "publish_twice": 3,
    "restart_capture": 6,
    "forget_removed": 3,
    "restart_driver": 3,
    "replace_driver": 3,
    "restore_old_checkpoint": 2,
    "rebuild_from_streams": 1,
    "recover": 2,
    "lose_fragment": 1,
    "garble_fragment": 1,
    "garble_flush": 1,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a seed decides; ``size`` is the number of transactions of each source.

    Most scenarios are short, because a fault needs few actions to show; one in a hundred is long.
    ``with_pandas``: each group's rows are pandas' frames. ``on_delta``: the acks are in a real Delta table.
    """

    seed: int
    sources: int
    size: int
    shape_groups: int
    max_pending: int
    many_shapes: bool
    with_pandas: bool
    on_delta: bool
    actions: tuple[Action, ...] = field(repr=False)

    @classmethod
    def of(cls, seed: int) -> "Scenario":
        rng = Random(seed)  # noqa: S311  a reproducible history, here and below
        is_long = rng.random() < 0.01
        length = 300 if is_long else rng.choice([6, 12, 12, 25, 60])
        names = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=length)
        return cls(
            seed=seed,
            sources=rng.choice([1, 1, 2, 3]),
            size=rng.randint(20, 40) if is_long else rng.choice([rng.randint(1, 4), rng.randint(3, 10)]),
            shape_groups=rng.choice([0, 1, 3, 3, 16]),
            max_pending=rng.choice([DEFAULT_MAX_PENDING, DEFAULT_MAX_PENDING, 1, 2, 4]),
            many_shapes=rng.random() < 0.2,
            with_pandas=rng.random() < 0.02,
            on_delta=rng.random() < 0.001,
            actions=tuple(Action(name, rng.getrandbits(32)) for name in names),
        )
