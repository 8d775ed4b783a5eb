"""The benches run; what they measure is for people to read."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)


def test_every_bench_runs_and_prints_its_tables() -> None:
    """In the least sizes: nobody notices a bench that has rotted until it is needed."""
    done = bench("--quick")
    assert done.returncode == 0, done.stderr
    assert "Routing, µs for one change" in done.stdout
    assert "insert that one of 1,000 shapes takes" in done.stdout


def test_a_bench_that_does_not_exist_is_refused_with_those_that_do() -> None:
    """It is a name on the command line, so it may be wrong."""
    done = bench("rooting")
    assert done.returncode == 2
    assert "there is no bench rooting, but routing, throughput" in done.stderr
