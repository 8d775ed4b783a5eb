"""Which tests are ``long``, which share a worker, and that the longest begin first, by a kept file of durations.

A file's tests share a worker, so that what the file builds once is built once. A test that takes seconds is by itself,
and ``long``, unless its file has a fixture for the whole file. ``tests/durations.json`` has the seconds of both;
``pytest --write-durations`` writes it after a run, and keeps those of the tests that did not run. A test without a
duration counts as short.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

_ROOT: Final = Path(__file__).parent.parent.parent
KEPT: Final = _ROOT / "tests" / "durations.json"
_ALONE_S: Final = 3.0
_LONG_FILE_S: Final = 30.0
"""For the tests of a file that builds something once."""


@cache
def kept_durations() -> Mapping[str, float]:
    """Seconds, by test function where it is by itself, and else by file."""
    kept: dict[str, float] = json.loads(KEPT.read_text())
    return kept


def unit_of(nodeid: str) -> str:
    """What one worker runs in a row: a test by itself, or the rest of its file."""
    return nodeid if _function_of(nodeid) in kept_durations() else nodeid.partition("::")[0]


def is_long(nodeid: str) -> bool:
    unit = unit_of(nodeid)
    return "::" in unit or (kept_durations().get(unit, 0.0) >= _LONG_FILE_S and _builds_once(unit))


def mark_long(items: list[pytest.Item]) -> None:
    for item in items:
        if is_long(item.nodeid):
            item.add_marker(pytest.mark.long)


def _function_of(nodeid: str) -> str:
    """Without the parameters, of which each commit may have others."""
    return nodeid.partition("[")[0]


def sort_longest_first(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (-kept_durations().get(_function_of(unit := unit_of(item.nodeid)), 0.0), unit))


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each worker the next unit, in the order in which the workers have sorted them."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


class Durations:
    """A plugin of ``--write-durations``: keeps how long each test took, its fixtures included."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        run = {_function_of(nodeid) for nodeid in self._seconds}
        run |= {name.partition("::")[0] for name in run}
        kept = {name: each for name, each in kept_durations().items() if name not in run and is_there(name)}
        kept |= durations_to_keep(self._seconds)
        KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=0) + "\n")


def is_there(name: str) -> bool:
    """Whether a kept name is that of a file, or of a function in it."""
    path, _, function = name.partition("::")
    file = _ROOT / path
    return file.exists() and (not function or f"def {function}(" in file.read_text())


def durations_to_keep(seconds: Mapping[str, float]) -> dict[str, float]:
    """Those of long tests, by the longest of its parameters, and the sum of the others of a file."""
    kept: dict[str, float] = defaultdict(float)
    for nodeid, duration in seconds.items():
        file, function = nodeid.partition("::")[0], _function_of(nodeid)
        if duration >= _ALONE_S and not _builds_once(file):
            kept[function] = max(kept[function], duration)
        else:
            kept[file] += duration
    return {name: round(total, 1) for name, total in sorted(kept.items()) if total >= 1}


@cache
def _builds_once(file: str) -> bool:
    return 'scope="module"' in (_ROOT / file).read_text()
