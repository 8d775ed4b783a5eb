"""``StalledFiles``: the files of the shape log that its store does not answer for, so that only their shapes wait.

A query for shapes that reads such a file takes minutes. So when a look at shapes takes long, each file that may have
rows of them is asked for the last bytes of its footer. One without an answer has stalled: no shape that it may have is
looked at until it answers, or the table no longer has it.
"""

import logging
from collections.abc import Collection
from typing import Final

from flushtracker.errors import SinkError
from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.rate_limited_log import RateLimitedLog
from flushtracker.shape_log.table.files import LogFile

_log = RateLimitedLog(logging.getLogger(__name__))

_ASK_AGAIN_S: Final = 10.0


class StalledFiles:
    """The stalled files of one log; for the poller's thread. A request takes 2 s at most."""

    def __init__(self) -> None:
        self._files: dict[str, LogFile] = {}
        self._asked_s = 0.0

    def __len__(self) -> int:
        return len(self._files)

    def may_have(self, shape_id: str) -> bool:
        """Whether a query for the shape would wait for a stalled file."""
        return any(file.may_have([shape_id]) for file in self._files.values())

    def find(self, tables: OpenTables, shape_ids: Collection[str], now_s: float) -> bool:
        """Find the stalled files that these shapes may be in; whether there are any new ones."""
        before, self._asked_s = len(self._files), now_s
        for file in tables.files():
            if file.path not in self._files and file.may_have(shape_ids) and _is_stalled(tables, file):
                self._files[file.path] = file
        return len(self._files) > before

    def ask_again(self, tables: OpenTables, now_s: float) -> None:
        """If it is time, ask for one that has stalled, and forget those that the table has no longer."""
        if not self._files or now_s - self._asked_s < _ASK_AGAIN_S:
            return
        self._asked_s = now_s
        present = {file.path for file in tables.files()}
        self._files = {path: file for path, file in self._files.items() if path in present}
        if self._files:
            path, file = next(iter(self._files.items()))
            del self._files[path]
            if _is_stalled(tables, file):
                self._files[path] = file


def _is_stalled(tables: OpenTables, file: LogFile) -> bool:
    try:
        tables.ask_for(file)
    except SinkError as error:
        _log(logging.WARNING, "file of shapes does not answer file=%s reason=%s", file.path, error)
        return True
    return False
