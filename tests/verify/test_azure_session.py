"""``test_azure.py`` in a process of its own: its Spark has other jars, and a process has one Spark."""

import sys
from pathlib import Path
from typing import Final

from tests.support.processes import run_to_end
from tests.support.seeds import every

_ROOT: Final = Path(__file__).parents[2]
_FILE: Final = "tests/verify/test_azure.py"


@every(4, 3)
def test_tables_and_checkpoints_on_azurite() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not soak", _FILE]
    done = run_to_end(command, cwd=_ROOT)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
