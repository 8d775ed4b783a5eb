"""How a scenario fails, and the smallest one that fails likewise."""

from dataclasses import replace

from tests.support.scenario import Scenario
from tests.support.simulation import Simulation


def failure_of(scenario: Scenario) -> Exception | None:
    """What a scenario ends with, if it fails."""
    try:
        Simulation(scenario).run()
    except Exception as error:  # noqa: BLE001  any is a failure
        return error
    return None


def shrunk(scenario: Scenario) -> Scenario:
    """A smaller scenario that fails with the same kind of error: shorter WAL, and only the actions that it needs."""
    kind = type(failure_of(scenario))

    def still_fails(smaller: Scenario) -> bool:
        return type(failure_of(smaller)) is kind

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


def described(scenario: Scenario) -> str:
    """The failure of a scenario, and what reproduces it."""
    actions = "\n".join(f"    {action.name} {action.seed}" for action in scenario.actions)
    return f"{scenario}\n{actions}\n{failure_of(scenario)!r}"
