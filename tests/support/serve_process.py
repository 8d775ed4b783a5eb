"""The program ``serve`` as a process of its own."""

import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def configuration(folder: Path, log: str, port: int = 0, **http: Any) -> Path:
    path = folder / "serve.yaml"
    more = "".join(f"  {key}: {value}\n" for key, value in http.items())
    path.write_text(f'sink: {{log: "{log}", shapes: "{log}_shapes"}}\nhttp:\n  listen: "127.0.0.1:{port}"\n{more}')
    return path


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

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def stop(self) -> tuple[int, list[str]]:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        rest = self.process.stderr.read().splitlines()
        return self.process.wait(60), rest
