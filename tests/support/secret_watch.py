"""Looks for secrets wherever a program could leave them: its output, its files, and the command line of any process."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_PAUSE_S: Final = 0.2


class SecretWatch:
    """Runs flushtracker with ``secrets`` in its environment, by name, and collects where else they appear."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **secrets}
        self._secrets = [line.encode() for text in secrets.values() for line in text.splitlines() if is_secret(line)]
        self._found: set[str] = set()
        self._command_lines = 0

    @contextmanager
    def running(self, log: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
        """The program with its output in ``log``, and all command lines under watch; killed if it still runs."""
        command = [sys.executable, "-m", "flushtracker", *arguments, "--verbose"]
        stop = Event()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=_ROOT, env=self._environment, start_new_session=True
            )
        watch = Thread(target=self._watch_command_lines, args=(stop,))
        watch.start()
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            stop.set()
            watch.join()

    def run(self, log: Path, *arguments: str) -> tuple[int, str]:
        """The exit code and the output of a program that ends by itself."""
        with self.running(log, *arguments) as process:
            code = process.wait(300)
        return code, log.read_text()

    def require_no_secret(self, folder: Path) -> None:
        """Fail if a secret was in a command line or in anything searched, or is in a file of ``folder``."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.search(str(path), [path.read_bytes()])
        assert self._command_lines > 0
        assert self._found == set()

    def search(self, place: str, texts: Iterable[bytes]) -> None:
        """Search texts; a secret in one adds ``place`` to those found."""
        if any(secret in text for text in texts for secret in self._secrets):
            self._found.add(place)

    def _watch_command_lines(self, stop: Event) -> None:
        while not stop.wait(_PAUSE_S):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    text = path.read_bytes()
                    self._command_lines += 1
                    self.search(f"command line {text[:60]!r}", [text])


def new_secret() -> str:
    """A secret that no output may have."""
    return f"secret-{uuid.uuid4().hex}"


def is_secret(line: str) -> bool:
    """Whether a line of an option's value is one: those around PEM are not."""
    return bool(line) and not line.startswith("-----")
