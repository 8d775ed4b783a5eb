"""Random histories of the whole tracker, with crashes at every step; ``make soak`` plays a million."""

from pathlib import Path

import pytest

from tests.support.ack_rows import AckRows, DeltaAckRows, acks_of
from tests.support.failing_scenario import described, failure_of, shrunk
from tests.support.sample_source import SampleSource
from tests.support.scenario import Action, Scenario
from tests.support.seeds import seeds
from tests.support.simulated_job import KilledError, SimulatedJob
from tests.support.simulation import Simulation
from tests.support.wal_history import Event

_HISTORIES = 50


@pytest.mark.parametrize("first", seeds(3, further=3))
def test_every_history_is_acknowledged_safely_exactly_and_to_its_end(first: int) -> None:
    """A failure shows the smallest history that fails likewise."""
    for seed in range(first, first + _HISTORIES):
        scenario = Scenario.of(seed)
        if failure_of(scenario) is not None:
            pytest.fail(described(shrunk(scenario)))


def test_lost_fragment_breaks_the_chain_also_behind_expired_ones_of_another_source() -> None:
    """A new checkpoint begins after them, and the source's first retained fragment is not a start."""
    actions = (
        Action("restart_capture", 3829031522),
        Action("lose_fragment", 352259961),
        Action("publish", 438296460),
        Action("run_batch", 4263322581),
        Action("rebuild_from_streams", 649520371),
    )
    scenario = Scenario(
        seed=700448,
        sources=3,
        size=1,
        shape_groups=3,
        max_pending=4096,
        many_shapes=False,
        with_pandas=False,
        on_delta=False,
        actions=actions,
    )
    assert failure_of(scenario) is None


def test_a_recovery_knows_no_flush_that_later_ones_have_replaced() -> None:
    """The greatest was far ahead, of a program that wrote the shape at another time; the topic keeps only the last."""
    actions = (
        Action("publish", 397693020),
        Action("run_batch", 766440889),
        Action("flush", 3114118191),
        Action("flush", 809084892),
        Action("restart_capture", 1194203904),
        Action("run_batch", 3326098964),
        Action("recover", 2646946103),
        Action("repeat_flushes", 3623451713),
        Action("flush", 755543993),
        Action("flush", 1415280988),
    )
    scenario = Scenario(
        seed=2555641810,
        sources=2,
        size=6,
        shape_groups=16,
        max_pending=1,
        many_shapes=False,
        with_pandas=False,
        on_delta=False,
        actions=actions,
    )
    assert failure_of(scenario) is None


@pytest.mark.parametrize("seed", seeds(1, further=1))
def test_histories_end_alike_on_a_real_ack_table(tmp_path: Path, seed: int) -> None:
    """The table in memory stands for Delta's: both have the same rows in the end."""
    in_memory, real = Simulation(Scenario.of(seed)), Simulation(Scenario.of(seed), DeltaAckRows(str(tmp_path / "acks")))
    in_memory.run()
    real.run()
    assert sorted(real.table.rows) == sorted(in_memory.table.rows)


def test_a_restart_may_acknowledge_a_keepalive_right_before_a_pending_commit() -> None:
    """The killed batch saw the commit that begins where the keepalive ends, and its ack was one below the keepalive."""
    source = SampleSource("7301/1/shapes", 1000)
    first, second = source.transaction(1100, "users"), source.keepalive(1150)
    watched = AckRows()
    job = SimulatedJob(watched)
    job.run_batch([first, second])
    killed: list[Event] = [source.transaction(1151, "users"), source.flushed("users", 1100)]
    with pytest.raises(KilledError):
        job.run_batch(killed, kill="before commit")
    assert acks_of(watched, source.name) == [1098, 1149]
    job = SimulatedJob(watched, job.checkpoint)
    assert acks_of(watched, source.name) == [1098, 1149, 1150]
    job.run_batch(killed)
    assert acks_of(watched, source.name) == [1098, 1149, 1150]
    job.run_batch([source.flushed("users", 1151)])
    assert acks_of(watched, source.name) == [1098, 1149, 1150, 1151]
