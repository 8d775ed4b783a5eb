"""What the jobs keep, on the oldest Spark that is supported, in an environment that ``make verify`` builds."""

from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import run_to_end
from tests.support.seeds import every, in_turn

_ROOT: Final = Path(__file__).parent.parent.parent
_FILES: Final = ("random_histories", "release_fixtures", "session shape_group", "old_checkpoint")


@every(3, 2)
@pytest.mark.parametrize("names", in_turn(_FILES))
def test_what_the_jobs_keep_on_the_oldest_spark(names: str) -> None:
    """A process of its own, because a process has one Spark."""
    command = [str(_ROOT / ".venv-4.0/bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    assert [name for name in " ".join(_FILES).split() if not (_ROOT / f"tests/spark/test_{name}.py").exists()] == []
    files = [f"tests/spark/test_{name}.py" for name in names.split()]
    done = run_to_end([*command, *files], cwd=_ROOT)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
