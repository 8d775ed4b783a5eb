"""A command of flushtracker as a process, with all that it starts: an environment variable marks its descendants."""

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

from tests.support.capture_rig import ROOT
from tests.support.waiting import wait_until


class RunningCommand:
    """``flushtracker`` with these arguments; its output is in ``folder``, and what runs in ``place`` belongs to it.

    ``python`` is that of another environment, and then runs in ``place``.
    """

    def __init__(
        self, folder: Path, place: Path, *arguments: str, deadline_s: float = 400, python: Path | None = None
    ) -> None:
        self._mark = f"FLUSHTRACKER_TEST_MARK={uuid.uuid4()}"
        self._place = place
        self._deadline_s = deadline_s
        name, _, value = self._mark.partition("=")
        self._output = folder / f"{uuid.uuid4()}.output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [str(python or sys.executable), "-m", "flushtracker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=place if python else ROOT,
                env=os.environ | {name: value},
                start_new_session=True,
            )

    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until the command has printed ``text``."""
        wait_until(lambda: text in self.output() or self.process.poll() is not None, text, self._deadline_s)
        assert text in self.output(), self.output()

    def processes(self) -> dict[int, str]:
        """The command lines of its running processes. PostgreSQL hides its environment, but runs in its data folder."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            # A process may end at any moment, or may not be readable.
            with suppress(OSError):
                marked = self._mark.encode() in (folder / "environ").read_bytes().split(b"\0")
                if marked or (folder / "cwd").readlink().is_relative_to(self._place):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return found

    def pid_of(self, part: str) -> int:
        (pid,) = (pid for pid, command in self.processes().items() if part in command)
        return pid

    def wait_until_gone(self) -> None:
        """Wait until none of its processes runs."""
        wait_until(lambda: not self.processes(), "the end of all its processes", 60)

    def kill(self) -> None:
        """Kill everything that still runs, whatever has failed."""
        self.process.kill()
        self.process.wait(30)
        for pid in self.processes():
            # The guards end them, too.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
