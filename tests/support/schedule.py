"""Which tests stay together on one worker, and that the longest begin first, by a kept file of durations.

What is known only after a run is kept in ``tests/durations.json``: seconds by test, or by file for what is short there.
``pytest --write-durations`` writes it anew; a test that is not in it counts as short, and all still run.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

KEPT: Final = Path(__file__).parent.parent / "durations.json"
_ALONE_S: Final = 4.0
"""A test of this length is a unit of its own, unless it shares a fixture that a file builds once."""


def groups_of(items: Iterable[pytest.Item], seconds: Mapping[str, float]) -> dict[str, list[pytest.Item]]:
    """The tests that one worker runs in a row, the longest group first."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[_group_of(item, seconds)].append(item)
    lasts: dict[str, float] = {}
    for name, members in groups.items():
        lasts[name] = sum(seconds.get(each.nodeid, 0.0) for each in members) + seconds.get(name, 0.0)
    return {name: groups[name] for name, _ in sorted(lasts.items(), key=lambda each: -each[1])}


def _group_of(item: pytest.Item, seconds: Mapping[str, float]) -> str:
    file = item.nodeid.partition("::")[0]
    if shared := _shared_fixtures(item):
        return f"{file} {shared}"
    return item.nodeid if seconds.get(item.nodeid, 0.0) >= _ALONE_S else file


def _shared_fixtures(item: pytest.Item) -> str:
    """The fixtures of the file, with their parameters, that it builds once for several tests."""
    if not isinstance(item, pytest.Function):
        return ""
    call = getattr(item, "callspec", None)
    shared = []
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        if definitions and definitions[-1].scope in {"module", "class", "package"}:
            index = "" if call is None else call.indices.get(name, "")
            shared.append(f"{name}{index}")
    return " ".join(sorted(shared))


def read_durations() -> dict[str, float]:
    kept: dict[str, float] = json.loads(KEPT.read_text())
    return kept


def durations_to_keep(seconds: Mapping[str, float]) -> dict[str, float]:
    """Those of long tests by themselves, and the sum of a file's short ones, in seconds."""
    kept: dict[str, float] = defaultdict(float)
    for nodeid, duration in seconds.items():
        kept[nodeid if duration >= _ALONE_S else nodeid.partition("::")[0]] += duration
    return {name: round(total, 1) for name, total in sorted(kept.items()) if total >= 1}


class Durations:
    """A plugin of ``--write-durations``: keeps how long each test took, its fixtures included."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.rpartition("@")[0] or report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        KEPT.write_text(json.dumps(durations_to_keep(self._seconds), indent=0) + "\n")
