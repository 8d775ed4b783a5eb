"""Programs that a test runs to their end, and facts about processes that it did not start itself."""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_to_end(command: Sequence[str | Path], **options: Any) -> "subprocess.CompletedProcess[str]":
    """What the program has printed, and its exit code; ``options`` are those of ``subprocess.run``."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def end_in_order(process: "subprocess.Popen[bytes]") -> None:
    """Stop a program as a supervisor does, and require that it says that all is well."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def has_ended(pid: int) -> bool:
    """Whether this process runs no more; where nothing reaps orphans, as in a container, it stays as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def group_has_ended(group: int) -> bool:
    """Whether no process of this process group runs any more; zombies do not count, as above."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(process_group) == group and state != "Z":
            return False
    return True
