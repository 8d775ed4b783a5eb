"""``GuardedProcess``: a child in a session of its own, which ends with this process, however that ends."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from flushtracker.errors import FlushtrackerError

STOP_TIMEOUT_SECONDS: Final = 60
_LAST_BYTES: Final = 4096


class Guard:
    """Runs a shell command once this process is no more, whatever ended it, unless it was dismissed before."""

    def __init__(self, command: str) -> None:
        # Only this process holds the pipe's other end, and it closes with it.
        self._shell = subprocess.Popen(  # noqa: S603  our own command
            ["/bin/sh", "-c", f"read -r _; {command}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """What was guarded has ended: nothing is to be run any more."""
        self._shell.kill()
        self._shell.communicate()


class GuardedProcess:
    """A running child; what it prints goes to the file ``log``. A Ctrl-C at the terminal does not reach it."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                start_new_session=True,
            )
        self._guard = Guard(f"kill -s KILL -- -{self._process.pid}")

    def failure(self) -> FlushtrackerError | None:
        """The error that it has ended by itself, with its last line and its exit code; ``None`` while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        # A shell's way to say that a signal ended it; an end that looks well is none, since nobody asked for it.
        exit_code = 128 - code if code < 0 else code or 1
        error = FlushtrackerError(
            f"{self.name} has ended with {exit_code}: {self._last_line()}; its log is {self._log}"
        )
        error.exit_code = exit_code
        return error

    def stop(self) -> None:
        """Stop it in good order (SIGTERM), and wait; then nothing of its process group is left."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.dismiss()

    def _last_line(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
