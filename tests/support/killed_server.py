"""``flushtracker serve`` of its own process, at an address that stays the same over kills."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from flushtracker.local.free_ports import free_port
from tests.support.config_file import write_serve_config

_ROOT: Final = Path(__file__).parents[2]


class KilledServer:
    """A server of the log; ``more`` are further keys of ``serve``."""

    def __init__(self, folder: Path, log: Path, **more: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1/shape"
        serve = {"listen": f"127.0.0.1:{self.port}", "allow_origins": ["*"], "poll": "200 ms", **more}
        self._config = write_serve_config(folder / f"serve_{self.port}.yaml", str(log.parent), **serve)
        self._log = self._config.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "flushtracker", "serve", "--config", str(self._config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=_ROOT, stderr=log)

    def has(self, shape: str) -> bool:
        """Whether the shape can be read."""
        return is_served(self.url, shape)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def is_served(url: str, shape: str) -> bool:
    """Whether the server at this address has the shape, and its rows."""
    try:
        with urlopen(f"{url}?shape={shape}&offset=-1", timeout=60) as answer:  # noqa: S310  our own address
            return bool(answer.status == 200)
    except OSError:
        return False
