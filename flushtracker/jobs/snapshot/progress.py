"""``Progress``: how far the connections of an attempt are, in the log every few seconds."""

import logging
import re
import time
from typing import Final

from flushtracker.jobs.snapshot.read_plan import ReadPlan
from flushtracker.jobs.snapshot.read_ranges import APPLICATION_NAME
from flushtracker.postgres.connection import Connection, rows
from flushtracker.wal.changes import TableName

logger = logging.getLogger(__name__)

EVERY_S: Final = 5.0

# A transaction sees the activity of one moment, unless it asks for another.
_NEW_MOMENT: Final = "SELECT pg_stat_clear_snapshot()"
_REPORT: Final = re.compile(r"([0-9]{1,18}) ([0-9]{1,18})")
_REPORTS: Final = "SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE %s"


class Progress:
    """Of one table's attempt, read over the connection that exports the snapshot."""

    def __init__(self, connection: Connection, table: TableName, plan: ReadPlan) -> None:
        self._connection = connection
        self._table = ".".join(table)
        self._plan = plan
        self._started_s = self._logged_s = time.monotonic()
        # A connection that has ended keeps what it reported last.
        self._reports: dict[int, tuple[int, int]] = {}

    def poll(self) -> None:
        """Log the progress, if it is time to; raises ``PostgresUnavailableError`` if the connection is lost."""
        now = time.monotonic()
        if now - self._logged_s < EVERY_S:
            return
        self._logged_s = now
        rows(self._connection, _NEW_MOMENT)
        prefix = f"{APPLICATION_NAME} {self._plan.attempt} "
        for pid, name in rows(self._connection, _REPORTS, (prefix + "%",)):
            # Anybody may name a connection so.
            if found := _REPORT.fullmatch(name.removeprefix(prefix)):
                self._reports[pid] = int(found[1]), int(found[2])
        done, read = (sum(column) for column in zip((0, 0), *self._reports.values(), strict=True))
        seconds, of = now - self._started_s, self._plan.tasks
        logger.info(
            "snapshot running table=%s shapes=%d ranges=%d/%d rows=%d rows_per_s=%d seconds_left=%s",
            *(self._table, len(self._plan.shapes), done, of, read, read / seconds),
            round(seconds / done * (of - done)) if done else "unknown",
        )
