"""Plays a scenario; if it fails, finds the smallest one that fails likewise."""

from contextlib import nullcontext
from dataclasses import replace
from tempfile import TemporaryDirectory
from traceback import walk_tb

from tests.support.ack_rows import DeltaAckRows
from tests.support.scenario import Scenario
from tests.support.simulation import Simulation


def play(scenario: Scenario) -> Simulation:
    """Play a scenario to its end, with a table of its own."""
    with TemporaryDirectory(prefix="flushtracker-") if scenario.on_delta else nullcontext() as folder:
        simulation = Simulation(scenario, DeltaAckRows(f"{folder}/acks") if folder else None)
        simulation.run()
    return simulation


def failure_of(scenario: Scenario) -> Exception | None:
    """What a scenario ends with, if it fails."""
    try:
        play(scenario)
    except Exception as error:  # noqa: BLE001  any is a failure
        return error
    return None


def shrunk(scenario: Scenario) -> Scenario:
    """A smaller scenario that fails with the same kind of error: shorter WAL, and only the actions that it needs."""
    kind = _kind(failure_of(scenario))

    def still_fails(smaller: Scenario) -> bool:
        return _kind(failure_of(smaller)) == kind

    for size in range(1, scenario.size):
        if still_fails(replace(scenario, size=size)):
            scenario = replace(scenario, size=size)
            break
    part = len(scenario.actions)
    while part:
        first = 0
        while first < len(scenario.actions):
            smaller = replace(scenario, actions=scenario.actions[:first] + scenario.actions[first + part :])
            if still_fails(smaller):
                scenario = smaller
            else:
                first += part
        part //= 2
    return scenario


def _kind(error: Exception | None) -> object:
    """The type of an error, and where it was raised."""
    if error is None:
        return None
    frame, line = list(walk_tb(error.__traceback__))[-1]
    return type(error), frame.f_code, line


def described(scenario: Scenario) -> str:
    """The failure of a scenario, and what reproduces it."""
    actions = "\n".join(f"    {action.name} {action.seed}" for action in scenario.actions)
    return f"{scenario}\n{actions}\n{failure_of(scenario)!r}"
