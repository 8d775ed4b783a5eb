"""A pytest plugin that judges mutants: for each, the tests that reach it, the cheapest first, until one fails.

mutmut has written all mutants into the source, behind trampolines that choose one. The tests are collected once, and
each mutant is judged in a fork of that session, so it costs what its tests cost, and nothing that it does stays.

1. All tests run without a mutant. Those that fail cannot judge anything, so they are left out, and named. The
   trampolines record which test reaches which function.
2. For each mutant, the tests that reach its function run, until one fails or their time is over.
3. A test that notices its first mutant runs again, alone and without a mutant: if it fails, it depends on other tests,
   so it is left out, and the mutant is judged again.
"""

import json
import os
import resource
import select
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.format_utils import mangled_name_from_mutant_name

SAMPLE: Final = Path("sample.txt")
"""The names of the mutants to judge, one a line."""
VERDICTS: Final = Path("verdicts.txt")
"""For each that is judged a line: verdict, name, and the test that noticed it."""

NOTICED: Final = "noticed"
SURVIVED: Final = "survived"
TIMED_OUT: Final = "timed out"
NOT_REACHED: Final = "not reached"

_LEAST_LIMIT_S: Final = 60
_LIMIT_FACTOR: Final = 20
"""Of the time that the tests take without a mutant: machines are busy."""
_MEMORY_BYTES: Final = 4 << 30
"""A mutant may allocate without end."""
_DIED: Final = "the process died"


class MutantJudge:
    """Replaces pytest's loop over the tests."""

    def __init__(self) -> None:
        self._tests: dict[str, pytest.Item] = {}
        self._durations_s: dict[str, float] = {}
        self._reaching: defaultdict[str, list[str]] = defaultdict(list)
        """By mangled name of a function."""
        self._trusted: set[str] = set()
        self._failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the doctests of mutants: the originals' doctests call what the trampolines choose."""
        items[:] = [item for item in items if "__mutmut_" not in item.nodeid or item.nodeid.endswith("__mutmut_orig")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._tests = {item.nodeid: item for item in session.items}
        self._learn()
        with VERDICTS.open("w") as verdicts:
            for name in SAMPLE.read_text().split():
                verdict, test = self._judge(name)
                verdicts.write(f"{verdict}\t{name}\t{test}\n")
                verdicts.flush()
        return True

    def _learn(self) -> None:
        """Run all tests without a mutant, and read which test reaches what."""
        for line in _in_fork(self._learn_in_fork, limit_s=float("inf")).splitlines():
            learned = json.loads(line)
            if learned["failed"]:
                self._leave_out(learned["test"], "it fails without a mutant")
                continue
            self._durations_s[learned["test"]] = learned["duration_s"]
            for function in learned["functions"]:
                self._reaching[function].append(learned["test"])

    def _learn_in_fork(self, write: Callable[[str], None]) -> None:
        set_mutant_under_test("stats")
        reached = state()._stats
        for test in self._tests:
            reached.clear()
            started = time.monotonic()
            failed = self._first_failure([test])
            took = {"duration_s": time.monotonic() - started, "failed": bool(failed), "functions": sorted(reached)}
            write(json.dumps({"test": test, **took}) + "\n")

    def _judge(self, mutant: str) -> tuple[str, str]:
        """The verdict, and the test that noticed the mutant."""
        function = mangled_name_from_mutant_name(mutant)
        while True:
            tests = sorted(
                (test for test in self._reaching[function] if test in self._tests), key=self._durations_s.__getitem__
            )
            if not tests:
                return NOT_REACHED, ""
            try:
                failed = self._first_failure_in_fork(mutant, tests)
            except TimeoutError:
                return TIMED_OUT, ""
            if not failed:
                return SURVIVED, ""
            if failed == _DIED or self._is_trusted(failed):
                return NOTICED, failed

    def _is_trusted(self, test: str) -> bool:
        if test not in self._trusted:
            if self._first_failure_in_fork("", [test]):
                self._leave_out(test, "it fails alone")
                return False
            self._trusted.add(test)
        return True

    def _leave_out(self, test: str, reason: str) -> None:
        del self._tests[test]
        print(f"left out, because {reason}: {test}", flush=True)  # noqa: T201  a program prints

    def _first_failure_in_fork(self, mutant: str, tests: Sequence[str]) -> str:
        def run(write: Callable[[str], None]) -> None:
            set_mutant_under_test(mutant)
            write(self._first_failure(tests) + "\n")

        limit_s = _LEAST_LIMIT_S + _LIMIT_FACTOR * sum(self._durations_s[test] for test in tests)
        answer = _in_fork(run, limit_s)
        return answer.rstrip("\n") if answer else _DIED

    def _first_failure(self, tests: Sequence[str]) -> str:
        self._failed = ""
        for at, test in enumerate(tests):
            item = self._tests[test]
            following = self._tests[tests[at + 1]] if at + 1 < len(tests) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return self._failed
        return ""


def _in_fork(run: Callable[[Callable[[str], None]], None], limit_s: float) -> str:
    """Run something in a fork that may use memory and time to a limit; returns what it has written."""
    source, target = os.pipe()
    child = os.fork()
    if not child:
        _become_a_child(source)
        try:
            run(lambda text: _write(target, text.encode()))
        finally:
            os._exit(0)
    os.close(target)
    try:
        return _read(source, limit_s).decode()
    finally:
        os.close(source)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _become_a_child(source: int) -> None:
    """Make the fork a group of its own, whose processes end with it, without output and endless memory."""
    os.close(source)
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def _read(source: int, limit_s: float) -> bytes:
    """Everything up to the end; raises ``TimeoutError``."""
    deadline = time.monotonic() + limit_s
    data = b""
    while True:
        left_s = deadline - time.monotonic()
        if not select.select([source], [], [], None if left_s == float("inf") else max(left_s, 0))[0]:
            raise TimeoutError
        read = os.read(source, 1 << 16)
        if not read:
            return data
        data += read


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest, which has this module as a plugin."""
    config.pluginmanager.register(MutantJudge())
