"""The steps between the states of ``ShapeLog.tla``, as TLC finds them, compared with those that ``LogRules`` allows.

Of each state that TLC has found, only what ``LogRules`` knows is kept, so several states look alike. The rules must
allow each step that one of them has, and no other: all steps are tried, within the bounds of the search. There are two
exceptions, which nobody else can tell apart. A writer may notify less than it has appended, as it does inside a
transaction; the model's does so only if another one has appended since. And the model's appends nothing before it has
notified all that the log has.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, combinations
from typing import Final, NamedTuple

from tests.support.log_rules import LogRules

_NODE: Final = re.compile(r'^(-?\d+) \[label="(.*?)"[^"]*\]', re.MULTILINE)
_EDGE: Final = re.compile(r"^(-?\d+) -> (-?\d+)", re.MULTILINE)
_SHAPE: Final = "a"


class Seen(NamedTuple):
    """What is left of a state of the model; ``log`` has how many rows there are of each change."""

    wal: int
    log: tuple[int, ...]
    claim: int
    batch: int
    attempt: int
    contains: frozenset[int]
    horizon: int
    notified: int


Steps = dict[Seen, set[Seen]]


def found_steps(dot: str) -> Steps:
    """The steps in the graph that TLC has dumped, without those that only publish, or change nothing that is seen."""
    states = {number: _seen(label) for number, label in _NODE.findall(dot)}
    steps: Steps = {seen: set() for seen in states.values()}
    for before, after in _EDGE.findall(dot):
        if states[after]._replace(wal=0) != states[before]._replace(wal=0):
            steps[states[before]].add(_rising(states[before], states[after]))
    return steps


def _rising(before: Seen, after: Seen) -> Seen:
    """The step as if the next attempt were the next number: attempts may fail."""
    return after._replace(attempt=min(after.attempt, before.attempt + 1))


def allowed_steps(states: Iterable[Seen], *, claims: int, attempts: int) -> Steps:
    """The steps that the rules allow from each of the states, with up to so many claims, and attempts of snapshots."""
    return {seen: {*_allowed(seen, claims, attempts)} for seen in states}


def is_known_to_the_writer_alone(before: Seen, after: Seen) -> bool:
    """Whether a step notifies less than the log has, or appends more before that is notified: see the module."""
    notifies = after == before._replace(notified=after.notified)
    end = max([before.horizon, *(change for change, count in enumerate(before.log, 1) if count)])
    return notifies or (after.batch > before.batch and before.notified < end)


def _allowed(seen: Seen, claims: int, attempts: int) -> Iterator[Seen]:
    for step in _steps(seen, claims, attempts):
        rules = _rules(seen)
        try:
            step(rules)
        except AssertionError:
            continue
        yield _rising(seen, _result(seen, rules))


def _steps(seen: Seen, claims: int, attempts: int) -> Iterator[Callable[[LogRules[int]], object]]:
    changes = range(1, len(seen.log) + 1)
    for claim in range(claims + 1):
        yield lambda rules, claim=claim: rules.claim(claim)  # type: ignore[misc]
        for rows in _subsets(changes):
            yield lambda rules, claim=claim, rows=rows: rules.append(claim, seen.batch + 1, {_SHAPE: rows})  # type: ignore[misc]
    for change in changes:
        if change != seen.notified:
            yield lambda rules, change=change: rules.notify(_SHAPE, change)  # type: ignore[misc]
        for attempt in range(attempts + 1):
            yield lambda rules, change=change, attempt=attempt: rules.fold(_SHAPE, attempt, change)  # type: ignore[misc]
    for attempt in range(attempts + 1):
        for contained in _subsets(range(1, seen.wal + 1)):
            yield lambda rules, attempt=attempt, contained={*contained}: rules.take_snapshot(  # type: ignore[misc]
                _SHAPE, attempt, contained.__contains__
            )


def _subsets(changes: Iterable[int]) -> Iterator[tuple[int, ...]]:
    every = tuple(changes)
    return chain.from_iterable(combinations(every, size) for size in range(len(every) + 1))


def _rules(seen: Seen) -> LogRules[int]:
    rules = LogRules[int](0)
    rules.publish(_SHAPE, range(1, seen.wal + 1))
    rules.claimed, rules.batch = seen.claim, seen.batch
    shape = rules.shape(_SHAPE)
    shape.rows = {change for change, count in enumerate(seen.log, 1) if count}
    shape.horizon, shape.notified, shape.attempt = seen.horizon, seen.notified, seen.attempt
    shape.end = max([seen.horizon, *shape.rows])
    shape.contains = seen.contains.__contains__
    return rules


def _result(before: Seen, rules: LogRules[int]) -> Seen:
    shape = rules.shape(_SHAPE)
    log = tuple(int(change in shape.rows) for change in range(1, len(before.log) + 1))
    contains = frozenset(change for change in range(1, before.wal + 1) if shape.contains(change))
    return Seen(before.wal, log, rules.claimed, rules.batch, shape.attempt, contains, shape.horizon, shape.notified)


def _seen(label: str) -> Seen:
    text = label.replace("\\n", "\n")

    def variable(name: str) -> str:
        found = re.search(rf"\b{name} = (.*)", text)
        if found is None:
            raise ValueError(f"a state of the model has no {name}: {text}")
        return found[1]

    def of_record(record: str, name: str) -> str:
        found = re.search(rf"\b{name} \|-> (\{{[^}}]*\}}|[^,\]]*)", record)
        if found is None:
            raise ValueError(f"{record} has no {name}")
        return found[1]

    def numbers(found: str) -> Iterator[int]:
        # TLC writes some sets as 0..2.
        for first, last in re.findall(r"(\d+)(?:\.\.(\d+))?", found):
            yield from range(int(first), int(last or first) + 1)

    version, snapshot = variable("version"), variable("snapshot")
    return Seen(
        wal=int(variable("wal")),
        log=tuple(numbers(variable("log"))),
        claim=int(of_record(version, "claim")),
        batch=int(of_record(version, "batch")),
        attempt=int(of_record(snapshot, "attempt")),
        contains=frozenset(numbers(of_record(snapshot, "contains"))) - {0},
        horizon=int(of_record(snapshot, "horizon")),
        notified=int(variable("notified")),
    )
