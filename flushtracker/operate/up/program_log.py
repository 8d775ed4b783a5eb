"""``ProgramLog``: the output of all programs as one, with the program's name at each line."""

import json
import threading
from datetime import datetime, timezone
from typing import IO, Final

from flushtracker.process.log_format import LogFormat

_WIDTH: Final = 8


class ProgramLog:
    """Writes lines to ``output``; may be called by several threads."""

    def __init__(self, log_format: LogFormat, output: IO[str]) -> None:
        self._format = log_format
        self._output = output
        self._lock = threading.Lock()

    def show(self, program: str, line: str) -> None:
        text = f"{program:<{_WIDTH}} {line}" if self._format == "text" else _as_json(program, line)
        with self._lock:
            self._output.write(f"{text}\n")
            self._output.flush()


def _as_json(program: str, line: str) -> str:
    """The object with its program; a line that is none, such as the first ones of a JVM, becomes one."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        found = {"timestamp": now, "level": "INFO", "logger": program, "message": line}
    return json.dumps({**found, "program": program})
