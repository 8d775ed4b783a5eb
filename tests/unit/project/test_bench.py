"""Every bench runs; its figures are for people to read."""

import subprocess
import sys
from pathlib import Path

from tests.bench import serving
from tests.support.processes import run_to_end

ROOT = Path(__file__).parents[3]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench", *arguments]
    return run_to_end(command, cwd=ROOT, timeout=120)


def test_every_bench_runs_and_prints_its_tables() -> None:
    """Runs the smallest sizes: otherwise nobody notices a broken bench until it is needed."""
    done = bench("--quick")
    assert done.returncode == 0, done.stderr
    assert "10 pending, c" in done.stdout
    assert "insert that matches one of 1,000 shapes" in done.stdout
    assert "read_shape, by batches" in done.stdout


def test_an_unknown_bench_is_refused_with_the_known_ones() -> None:
    """The name comes from the command line, so it may be wrong."""
    done = bench("rooting")
    assert done.returncode == 2
    assert "unknown benchmark rooting; choose from beam, reads, throughput, " in done.stderr


def test_bench_of_http_has_figures_or_says_why_not() -> None:
    """A size that is too large for the machine, or a step that takes too long, leaves the others their lines."""
    header = ["clients", "a", "b"]
    assert len(serving._initial(1_000)) == 7
    assert len(serving._waiting(20, 0.1)) == 5

    def late() -> list[str]:
        raise TimeoutError("3 of 10 clients wait after 120 s")

    assert serving._line(["many"], header, late) == ["many", "none: 3 of 10 clients wait after 120 s", ""]
