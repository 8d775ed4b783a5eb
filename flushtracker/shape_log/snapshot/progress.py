"""``Progress``: the progress of an attempt, for the log and the status.

The connections of a step report progress in their application names, which are read over the connection that exports
the snapshot.
"""

import logging
import re
import time
from typing import Final

from flushtracker.postgres.connection import Connection, rows
from flushtracker.process.clock import now_ms
from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus
from flushtracker.shape_log.snapshot.read_plan import ReadPlan
from flushtracker.shape_log.snapshot.read_ranges import APPLICATION_NAME
from flushtracker.status.snapshot_status import AttemptStatus

logger = logging.getLogger(__name__)

_EVERY_S: Final = 5.0
# A transaction sees the activity of one moment, unless it discards its snapshot of that.
_DISCARD_ACTIVITY: Final = "SELECT pg_stat_clear_snapshot()"
_REPORT: Final = re.compile(r"([0-9]{1,18}) ([0-9]{1,18})")
_REPORTS: Final = "SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE %s"


class Progress:
    """The progress of one attempt; ``done`` is called after each step, ``poll`` at any time."""

    def __init__(self, connection: Connection, table: str, live: LiveSnapshotStatus) -> None:
        self._connection, self._table, self._live = connection, table, live
        self._started_at_ms = now_ms()
        self._started_s = self._logged_s = time.monotonic()
        self._done = self._rows = 0
        self._reports: dict[int, tuple[int, int]] = {}
        """The current step's reports by connection; a connection that has ended keeps its last one."""
        self._earlier: set[int] = set()

    @property
    def seconds(self) -> float:
        """How long the attempt has been running."""
        return time.monotonic() - self._started_s

    def step_done(self, plan: ReadPlan, done: int, rows: int) -> None:
        """Record that the first ``done`` ranges are durable, with this number of rows."""
        self._done, self._rows = done, rows
        self._earlier |= self._reports.keys()
        self._reports = {}
        self._live.note_attempt(self._status(plan))

    def poll(self, plan: ReadPlan) -> None:
        """Log the progress if it is due; raises ``PostgresUnavailableError`` if the connection is lost."""
        if time.monotonic() - self._logged_s < _EVERY_S:
            return
        self._logged_s = time.monotonic()
        self._read_reports(plan.attempt)
        status = self._status(plan)
        self._live.note_attempt(status)
        logger.info(
            "snapshot running table=%s shapes=%d ranges=%d/%d rows=%d rows_per_s=%d seconds_left=%s",
            *(self._table, status.shapes, status.ranges_done, status.ranges, status.rows, status.rows_per_s),
            "unknown" if status.seconds_left is None else status.seconds_left,
        )

    def _read_reports(self, attempt: int) -> None:
        rows(self._connection, _DISCARD_ACTIVITY)
        prefix = f"{APPLICATION_NAME} {attempt} "
        for pid, name in rows(self._connection, _REPORTS, (prefix + "%",)):
            # Any client may choose such a name.
            found = _REPORT.fullmatch(name.removeprefix(prefix))
            if found and pid not in self._earlier:
                self._reports[pid] = int(found[1]), int(found[2])

    def _status(self, plan: ReadPlan) -> AttemptStatus:
        running = (sum(column) for column in zip((0, 0), *self._reports.values(), strict=True))
        done, read = (total + more for total, more in zip((self._done, self._rows), running, strict=True))
        seconds, of = max(self.seconds, 0.001), len(plan.ranges)
        left = round(seconds / done * (of - done)) if done else None
        started = self._started_at_ms
        return AttemptStatus(
            plan.source, self._table, len(plan.shapes), started, of, min(done, of), read, int(read / seconds), left
        )
