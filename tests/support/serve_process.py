"""The program ``serve`` as a process of its own."""

import http.client
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.config_file import write_serve_config

_SERVE: Final = 4
"""The port of its status is so many after that of ``track``, which the configuration has."""


def configuration(folder: Path, log: str, port: int = 0, status_port: int = 0, **serve: Any) -> Path:
    """Write the configuration of a server of ``log``, with further keys of ``serve``; without a port, no status."""
    assert Path(log).name == "log"
    status = {"listen": f"127.0.0.1:{status_port - _SERVE}"} if status_port else False
    keys = {"listen": f"127.0.0.1:{port}", **serve}
    return write_serve_config(folder / "serve.yaml", str(Path(log).parent), status=status, **keys)


def command(path: Path) -> list[str]:
    return [sys.executable, "-m", "flushtracker", "serve", "--config", str(path)]


class Process:
    """A server of its own process."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(command(path), stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.lines = [self.process.stderr.readline()]
        while "serving url=" not in self.lines[-1]:
            assert self.lines[-1], self.lines
            self.lines.append(self.process.stderr.readline())
        self.port = int(self.lines[-1].partition("127.0.0.1:")[2].partition("/")[0])

    def get(self, path: str, timeout: float = 60) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request("GET", path)
        response = connection.getresponse()
        found = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        connection.close()
        return found

    @property
    def resident_bytes(self) -> int:
        """What the process has in memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def stop(self) -> tuple[int, list[str]]:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        rest = self.process.stderr.read().splitlines()
        return self.process.wait(60), rest
