"""``flushtracker status`` with a configuration of its own: what it prints, and its exit code."""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import datetime, timezone
from io import StringIO
from pathlib import Path
from typing import Any, Final

from flushtracker.cli import main
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.config_file import write_config
from tests.support.processes import run_to_end
from tests.support.status_pages import ACK, SEEN, SOURCE

ROOT: Final = Path(__file__).parents[2]


@dataclass
class StatusCommand:
    """Capture's configuration in ``folder``, for the server of ``connection``, and an ack table."""

    folder: Path
    connection: Mapping[str, str]
    peers: tuple[str, ...] = ()
    storage: str | None = None
    storage_options: Mapping[str, str] | None = None
    is_in_process: bool = False
    """Whether this process runs it, which takes less time."""

    @property
    def acks(self) -> Path:
        return self.folder / "acks"

    def append(self, source: str = SOURCE, *, ack_lsn: int = ACK, last_seen_lsn: int = SEEN, pending: int = 1) -> None:
        """Append a row to the ack table, as the job does when the ack moves."""
        table = AckTable(str(self.acks))
        table.fence_others()
        now = datetime.now(timezone.utc)
        table.append(AckRow(source, 3, ack_lsn, last_seen_lsn, pending, "users-eu" if pending else None, now, now))

    def arguments(self, *arguments: str) -> list[str]:
        """The command line, after writing the configuration."""
        settings: dict[str, Any] = {
            "postgres": dict(self.connection),
            "kafka": "localhost:1",
            "storage": {"path": self.storage or str(self.folder), "options": dict(self.storage_options or {})},
            "shapes": "shapes.yaml",
            "capture": {"slot": "shapes", "publication": "shapes"},
            "status": False,
        }
        if self.peers:
            others = ("track", "write", "serve")
            settings["status"] = {"listen": "127.0.0.1:0", "urls": dict(zip(others, self.peers, strict=False))}
            settings |= dict.fromkeys(others[len(self.peers) :], False)
        file = write_config(self.folder / "capture.yaml", settings)
        return ["status", "--config", str(file), *arguments]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        if self.is_in_process:
            return run_here(*self.arguments(*arguments))
        command = [sys.executable, "-m", "flushtracker", *self.arguments(*arguments)]
        return run_to_end(command, cwd=ROOT, timeout=120)

    def json(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Its exit code and its object."""
        done = self.run("--json", *arguments)
        assert done.stderr == ""
        found: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, found

    def kinds(self, *arguments: str) -> tuple[int, list[str]]:
        """Its exit code and the kinds of its problems."""
        code, found = self.json(*arguments)
        return code, [problem["kind"] for problem in found["verdict"]["findings"]]

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start it with stdout as a pipe."""
        command = [sys.executable, "-m", "flushtracker", *self.arguments(*arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def run_here(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """What the command with these arguments prints in this process, and its exit code."""
    with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
        code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())
