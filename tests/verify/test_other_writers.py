"""The writers in Go and Node of ``examples/writers`` keep the contract, by ``flushtracker conformance``."""

import re
import sys
from pathlib import Path
from typing import Final

import pytest

from flushtracker.trials.conformance.judge import RULES
from tests.support.go_programs import build_folder
from tests.support.node_folder import node_folder
from tests.support.processes import run_to_end
from tests.support.seeds import every, in_turn

ROOT: Final = Path(__file__).parents[2]
_WRITERS: Final = ROOT / "examples" / "writers"


def _program(language: str, folder: Path) -> str:
    if language == "go":
        return str(build_folder(_WRITERS / "go", folder / "writer"))
    return f"node {node_folder(_WRITERS / 'node')}/writer.mjs"


@every(3, 1)
@pytest.mark.parametrize("language", in_turn(["go", "node"]))
def test_a_writer_in_another_language_keeps_every_rule(language: str, tmp_path: Path) -> None:
    """It is built from what its lock file names, and takes no snapshots; two of three kills are power failures."""
    program = _program(language, tmp_path)
    commands = ["--writer", f"{program} write {{config}} {{data}} {{writer}}"]
    commands += ["--dump", f"{program} dump {{data}}", "--read", f"{program} read {{data}}"]
    options = ["--power-loss", "--kills", "6", "--seeds", "1", "--timeout", "120", "--data", str(tmp_path)]
    done = run_to_end([sys.executable, "-m", "flushtracker", "conformance", *commands, *options], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    untested = {"rows", "snapshot"}
    assert set(re.findall(r"^pass  (\w+)", done.stdout, re.MULTILINE)) == RULES.keys() - untested
