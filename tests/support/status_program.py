"""A program whose status is a document in a file, with the real server, exporter and page; it may be a process.

``python -m tests.support.status_program FILE PORT PEER...`` serves ``FILE``, read anew for each answer.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Final
from urllib.request import urlopen

from flushtracker.config.status_config import StatusConfig
from flushtracker.local.free_ports import free_port
from flushtracker.status.http.status_server import StatusServer
from flushtracker.status.program_status import ProgramStatus, parse_status
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_DEADLINE_S: Final = 30.0


class StatusProgram:
    """A context manager; ``folder`` has the document, ``<name>.json``. It can be killed if it ``is_process``."""

    def __init__(
        self,
        folder: Path,
        name: str,
        status: ProgramStatus,
        peers: Sequence[str] = (),
        *,
        is_process: bool = False,
    ) -> None:
        self._file = folder / f"{name}.json"
        self._peers = peers
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._is_process = is_process
        self._process: subprocess.Popen[bytes] | None = None
        self._here = ExitStack()
        self.show(status)

    def show(self, status: ProgramStatus) -> None:
        """Make this its status from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(status.to_json()))
        new.rename(self._file)

    def start(self) -> None:
        """Start it and wait until it answers."""
        if not self._is_process:
            self._here.enter_context(_server(self._file, self.port, self._peers))
            return
        command = [sys.executable, "-m", __name__, str(self._file), str(self.port), *self._peers]
        self._process = subprocess.Popen(command, cwd=_ROOT, start_new_session=True)
        wait_until(self._answers, f"{self.url} answers", _DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL: it closes nothing and says nothing any more."""
        assert self._is_process
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_DEADLINE_S)
            self._process = None

    def document(self) -> dict[str, Any]:
        """``/status.json``."""
        return get_json(f"{self.url}/status.json")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None
        try:
            urlopen(f"{self.url}/healthz", timeout=_DEADLINE_S).close()  # noqa: S310  of this machine
        except (urllib.error.URLError, OSError):
            return False
        return True

    def __enter__(self) -> "StatusProgram":
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._here.close()
        if self._is_process:
            self.kill()


def get_json(url: str) -> dict[str, Any]:
    """What this URL returns, as JSON."""
    with urlopen(url, timeout=_DEADLINE_S) as response:  # noqa: S310  of this machine
        fields: dict[str, Any] = json.load(response)
        return fields


def _server(file: Path, port: int, peers: Sequence[str]) -> StatusServer:
    return StatusServer(StatusConfig("127.0.0.1", port, tuple(peers)), lambda: parse_status(file.read_bytes()))


if __name__ == "__main__":
    with _server(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]):
        Event().wait()
