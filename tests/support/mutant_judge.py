"""A pytest plugin that judges mutants: for each, the tests that reach it, the cheapest first, until one fails.

mutmut has written all mutants into the source, behind trampolines that choose one. The tests are collected once, and
each mutant is judged in a fork of that session, so it costs what its tests cost, and nothing that it does stays.

1. All tests run without a mutant. Those that fail cannot judge anything, so they are left out, and named. The
   trampolines record which test reaches which function.
2. For each mutant, the tests that reach its function run, until one fails, or takes ten times as long.
3. A test that notices its first mutant runs again, alone and without a mutant: if it fails, it depends on other tests,
   so it is left out, and the mutant is judged again.

What is learned and judged is kept at once, and not done again by the next session with the same files.
"""

import json
import os
import resource
import select
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.format_utils import mangled_name_from_mutant_name

SAMPLE: Final = Path("sample.txt")
"""The names of the mutants to judge, one a line."""
LEARNED: Final = Path("learned.jsonl")
"""For each test that has run without a mutant a line."""
VERDICTS: Final = Path("verdicts.txt")
"""For each mutant that is judged a line: verdict, name, and the test that noticed it. A name's last counts."""

NOTICED: Final = "noticed"
SURVIVED: Final = "survived"
TIMED_OUT: Final = "timed out"
NOT_REACHED: Final = "not reached"
FOUND: Final = (NOTICED, TIMED_OUT)

_LEAST_LIMIT_S: Final = 60
_LIMIT_FACTOR: Final = 20
"""A multiple of the time that the tests take without a mutant: machines are busy."""
_LEAST_CPU_S: Final = 10
_CPU_FACTOR: Final = 10
"""A multiple of the time that a test takes without a mutant."""
_MEMORY_BYTES: Final = 4 << 30
"""A mutant may allocate without end."""
_DIED: Final = "the process died"


def read_verdicts(file: Path) -> dict[str, tuple[str, str]]:
    """Verdict and test, by mutant."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {name: (verdict, test) for verdict, name, test in (line.split("\t") for line in lines)}


class MutantJudge:
    """Replaces pytest's loop over the tests. ``again``: what no test has noticed is judged once more."""

    def __init__(self, *, again: bool) -> None:
        self._again = again
        self._tests: dict[str, pytest.Item] = {}
        self._durations_s: dict[str, float] = {}
        self._reaching: defaultdict[str, list[str]] = defaultdict(list)
        """By mangled name of a function."""
        self._trusted: set[str] = set()
        self._failed = ""
        self._reached_by_set_up: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the doctests of mutants: the originals' doctests call what the trampolines choose."""
        items[:] = [item for item in items if "__mutmut_" not in item.nodeid or item.nodeid.endswith("__mutmut_orig")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid
        if report.when == "setup":
            self._reached_by_set_up |= state()._stats

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._tests = {item.nodeid: item for item in session.items}
        self._learn()
        verdicts = read_verdicts(VERDICTS)
        names = SAMPLE.read_text().split()
        with VERDICTS.open("a") as lines:
            for at, name in enumerate(names, start=1):
                if name not in verdicts or (self._again and verdicts[name][0] not in FOUND):
                    verdicts[name] = self._judge(name)
                    verdict, test = verdicts[name]
                    lines.write(f"{verdict}\t{name}\t{test}\n")
                    lines.flush()
                    print_line(f"{at:,}/{len(names):,} {verdict}: {name} {test}")
        return True

    def _learn(self) -> None:
        """Run all tests without a mutant that have not run before, and read which test reaches what."""
        left = self._tests.keys() - {learned["test"] for learned in _read_learned()}
        print_line(f"{len(left):,} of {len(self._tests):,} tests are to run without a mutant")
        done = len(self._tests) - len(left)
        for file, group in groupby((test for test in self._tests if test in left), key=_file_of):
            tests = list(group)
            _in_fork(lambda _, tests=tests: self._learn_in_fork(tests), limit_s=float("inf"))  # type: ignore[misc]
            done += len(tests)
            print_line(f"{done:,}/{len(self._tests):,} {file}")
        known = set[str]()
        for learned in _read_learned():
            known.add(test := learned["test"])
            self._durations_s[test] = learned["duration_s"]
            for function in learned["functions"]:
                self._reaching[function].append(test)
            if learned["failed"] and test in self._tests:
                self._leave_out(test, "it fails without a mutant")
        for test in self._tests.keys() - known:
            self._leave_out(test, "the process died in it, or before it")

    def _learn_in_fork(self, tests: Sequence[str]) -> None:
        """Run a file's tests. What one of them sets up may be what the others use, so it counts as reached by them."""
        set_mutant_under_test("stats")
        reached = state()._stats
        with LEARNED.open("ab", buffering=0) as lines:
            for test, following in zip(tests, [*tests[1:], None], strict=True):
                reached.clear()
                started = time.monotonic()
                failed = self._failure_of(test, following)
                took = {"duration_s": round(time.monotonic() - started, 3), "failed": bool(failed)}
                learned = {"test": test, **took, "functions": sorted(reached | self._reached_by_set_up)}
                lines.write(json.dumps(learned).encode() + b"\n")

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
        print_line(f"left out, because {reason}: {test}")

    def _first_failure_in_fork(self, mutant: str, tests: Sequence[str]) -> str:
        def run(write: Callable[[str], None]) -> None:
            set_mutant_under_test(mutant)
            write(self._first_failure_in_time(tests) + "\n")

        limit_s = _LEAST_LIMIT_S + _LIMIT_FACTOR * sum(self._durations_s[test] for test in tests)
        answer = _in_fork(run, limit_s)
        return answer.rstrip("\n") if answer else _DIED

    def _first_failure_in_time(self, tests: Sequence[str]) -> str:
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            limit_s = time.process_time() + _LEAST_CPU_S + _CPU_FACTOR * self._durations_s[test]
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), resource.RLIM_INFINITY))
            if failed := self._failure_of(test, following):
                return failed
        return ""

    def _failure_of(self, test: str, following: str | None) -> str:
        """The test itself if it fails. What it has set up for several is left to the ``following`` test."""
        self._failed = ""
        item, then = self._tests[test], None if following is None else self._tests[following]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=then)
        return self._failed


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _read_learned() -> Iterator[dict[str, Any]]:
    lines = LEARNED.read_text().splitlines() if LEARNED.exists() else []
    return map(json.loads, lines)


def print_line(text: str) -> None:
    print(text, flush=True)  # noqa: T201  a program prints


def _in_fork(run: Callable[[Callable[[str], None]], None], limit_s: float) -> str:
    """Run something in a fork that may use memory and time to a limit; returns what it has written.

    Raises:
        TimeoutError: It used more time, or more CPU time than it allowed itself.
    """
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
        answer = _read(source, limit_s).decode()
    finally:
        os.close(source)
        os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        raise TimeoutError
    return answer


def _become_a_child(source: int) -> None:
    """Make the fork a group of its own, whose processes end with it, without output and endless memory."""
    os.close(source)
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--judge-again", action="store_true", help="also judge again what no test has noticed")


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest, which has this module as a plugin."""
    config.pluginmanager.register(MutantJudge(again=config.getoption("--judge-again")))
