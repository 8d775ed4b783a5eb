"""``flushtracker up`` with a configuration in a folder of its own, and other commands with the same one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from flushtracker.operate.init.starting_files import CONFIG
from tests.support.processes import run_to_end
from tests.support.running_command import RunningCommand

DEADLINE_S: Final = 400


class RunningUp:
    """Whoever makes one writes ``config``, and calls :meth:`kill` at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / CONFIG
        self._started = list[RunningCommand]()

    def start(self, *arguments: str) -> RunningCommand:
        """``flushtracker up``."""
        command = RunningCommand(
            self.folder, self.folder, "up", "--config", str(self.config), *arguments, deadline_s=DEADLINE_S
        )
        self._started.append(command)
        return command

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "flushtracker", *arguments, "--config", str(self.config)]
        return run_to_end(command, timeout=DEADLINE_S)

    def read(self, shape: str) -> list[dict[str, str]]:
        """The rows that readers of the shape see; none while they cannot read it."""
        return list(map(json.loads, self.run("read", shape, "--format", "jsonl").stdout.splitlines()))

    def kill(self) -> None:
        """Kill what still runs, whatever has failed."""
        for command in self._started:
            command.kill()
