"""``ShapeLook``: finds shapes in open tables, in a thread of its own, which may be left behind with these tables."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from flushtracker.errors import FlushtrackerError, SinkError
from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.rate_limited_log import RateLimitedLog
from flushtracker.serve.table_view import Outcome, ShapeProblem

_log = RateLimitedLog(logging.getLogger(__name__))

LOOK_S: Final = 4.0
"""A look finds no more shapes after this time, so that a request that waits for the next one is answered in time."""
_AT_ONCE: Final = 20
"""Shapes found by one query. With more ids, the query engine does not skip files."""


class ShapeLook:
    """Finds ``names``, in this order, until :data:`LOOK_S` after ``began_s``; one that cannot be read is skipped."""

    def __init__(self, tables: OpenTables, names: Sequence[str], began_s: float, now_s: Callable[[], float]) -> None:
        self._tables, self._names = tables, names
        self._began_s, self._now_s = began_s, now_s
        self.found: dict[str, Outcome] = {}
        self.looked_up: Sequence[str] = ()
        """The shapes of the query that runs."""
        self._is_left = False
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="look", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; false if it takes longer. Raises what the look raised."""
        if not self._ended.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def leave(self) -> dict[str, Outcome]:
        """What has been found; the rest does not matter any more, and the tables are the thread's alone."""
        self._is_left = True
        return dict(self.found)

    def _run(self) -> None:
        try:
            for start in range(0, len(self._names), _AT_ONCE):
                if self._is_left or (start and self._now_s() - self._began_s > LOOK_S):
                    break
                self.looked_up = self._names[start : start + _AT_ONCE]
                self._look_up(self.looked_up)
        except BaseException as error:  # noqa: BLE001  it is raised by wait()
            self._error = error
        self._ended.set()

    def _look_up(self, names: Sequence[str]) -> None:
        # If one of them cannot be read, each is looked up separately.
        with suppress(FlushtrackerError):
            self._tables.look_up(names)
        outcomes = {name: self._find(name) for name in names if not self._is_left}
        # One step, because whoever leaves copies it meanwhile.
        self.found = self.found | {name: outcome for name, outcome in outcomes.items() if outcome is not None}

    def _find(self, shape_id: str) -> Outcome | None:
        try:
            found = self._tables.seen(shape_id)
            found.found.require_started()
        except SinkError as error:
            _log(logging.WARNING, "shape cannot be looked at reason=%s", error)
            return None
        except FlushtrackerError as error:
            return ShapeProblem(type(error), str(error))
        return found
