"""The writer in Go of ``examples/writers`` keeps the contract, by ``flushtracker conformance``."""

import re
import sys
from pathlib import Path
from typing import Final

from flushtracker.trials.conformance.judge import RULES
from tests.support.go_programs import build_folder
from tests.support.processes import run_to_end
from tests.support.seeds import every

ROOT: Final = Path(__file__).parents[2]
_GO: Final = ROOT / "examples" / "writers" / "go"


@every(4, 2)
def test_the_writer_in_go_keeps_every_rule(tmp_path: Path) -> None:
    """It is built from what its lock file names, and takes no snapshots; two of three kills are power failures."""
    program = build_folder(_GO, tmp_path / "writer")
    commands = ["--writer", f"{program} write {{config}} {{data}} {{writer}}"]
    commands += ["--dump", f"{program} dump {{data}}", "--read", f"{program} read {{data}}"]
    options = ["--power-loss", "--kills", "6", "--seeds", "1", "--data", str(tmp_path)]
    done = run_to_end([sys.executable, "-m", "flushtracker", "conformance", *commands, *options], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    untested = {"rows", "snapshot"}
    assert set(re.findall(r"^pass  (\w+)", done.stdout, re.MULTILINE)) == RULES.keys() - untested
