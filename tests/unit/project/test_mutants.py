"""``make mutants`` in a small project: what it finds, and that a later run goes on from where one ended."""

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.mutants import digest_of, sample_of
from tests.support.mutant_judge import _in_fork

_ROOT: Final = Path(__file__).parents[3]

_SOURCE: Final = """
def is_late(age_s: int) -> bool:
    return age_s > 60

def grows(ages: list[int]) -> list[int]:
    while len(ages) < 3:
        ages.append(0)
    return ages

def unused() -> int:
    return 1
"""
_TESTS: Final = """
import pytest
from flushtracker.ages import grows, is_late

@pytest.fixture(scope="module")
def grown():
    return grows([])

def test_first(grown):
    pass

def test_second(grown):
    assert grown == [0, 0, 0]

def test_late():
    assert is_late(600) and not is_late(6)

@pytest.mark.long
def test_limit():
    assert not is_late(60)
    assert is_late(61)

def test_fails():
    assert is_late(0)
"""
_SETTINGS: Final = """
[tool.pytest.ini_options]
markers = ["long", "soak"]
[tool.mutmut]
source_paths = ["flushtracker"]
only_mutate = ["flushtracker/*.py"]
pytest_add_cli_args = ["-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = ["tests/test_ages.py"]
"""


def test_each_seed_adds_its_sample() -> None:
    """So several runs with a seed each judge the same as one run with all of them."""
    names = [f"m{number}" for number in range(1_000)]
    both = sample_of(names, [11, 12], 100)
    assert set(both) == {*sample_of(names, [11], 100), *sample_of(names, [12], 100)}
    assert len(both) == len(set(both)) > 150
    assert sample_of(names, [11], 5_000) == sample_of(names, [11], 1_000)


def test_digest_is_of_names_contents_and_patterns(tmp_path: Path) -> None:
    """Whatever changes one of them begins again."""
    (tmp_path / "a.py").write_text("1")
    digests = [digest_of([tmp_path], ["*"]), digest_of([tmp_path], ["a*"])]
    (tmp_path / "a.py").write_text("2")
    digests.append(digest_of([tmp_path], ["*"]))
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    digests.append(digest_of([tmp_path], ["*"]))
    assert len(set(digests)) == len(digests)


def test_a_run_goes_on_from_what_another_has_judged(tmp_path: Path) -> None:
    """First some mutants with the fast tests; then all, and the long tests for what the fast ones have missed."""
    _make_project(tmp_path)
    some = _run(tmp_path, "--sample", "4", "--seeds", "0")
    assert "4 of 4 tests are to run without a mutant" in some
    assert "it fails without a mutant: tests/test_ages.py::test_fails" in some
    assert len(_judged(some)) == 4
    missed = {name for name, verdict in _judged(some).items() if verdict != "noticed"}
    assert {_function_of(name) for name in missed} == {"is_late", "unused"}
    longer = _run(tmp_path, "--sample", "100", "--seeds", "0", "--long")
    assert "1 of 5 tests are to run without a mutant" in longer
    assert _judged(longer).keys() & _judged(some).keys() == missed
    assert {(_function_of(name), verdict) for name, verdict in (_judged(some) | _judged(longer)).items()} == {
        ("grows", "noticed"),
        ("is_late", "noticed"),
        ("unused", "not reached"),
    }


def test_a_mutant_that_loops_is_ended_by_its_own_cpu_time() -> None:
    """However long it would have to wait for the processor."""

    def loop(_: Callable[[str], None]) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (1, resource.RLIM_INFINITY))
        while True:
            pass

    with pytest.raises(TimeoutError):
        _in_fork(loop, limit_s=float("inf"))


def _make_project(folder: Path) -> None:
    files = {"pyproject.toml": _SETTINGS, "flushtracker/ages.py": _SOURCE, "flushtracker/__init__.py": ""}
    files["tests/test_ages.py"] = _TESTS
    files |= {name: (_ROOT / name).read_text() for name in ("tests/mutants.py", "tests/support/mutant_judge.py")}
    files |= {"tests/__init__.py": "", "tests/support/__init__.py": ""}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "tests.mutants", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def _judged(output: str) -> dict[str, str]:
    """What a run has judged itself, by its lines of progress."""
    lines = (line.partition(" ")[2] for line in output.splitlines() if line.partition(" ")[0].count("/") == 1)
    named = (line.partition(": ") for line in lines if "__mutmut_" in line)
    return {name.partition(" ")[0]: verdict for verdict, _, name in named}


def _function_of(mutant: str) -> str:
    return mutant.partition(".x_")[2].partition("__mutmut_")[0]
