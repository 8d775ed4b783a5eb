"""``Reading``: reads all ranges of a plan in one exported snapshot, step by step.

The files of a step are complete before the next step begins. A step that fails, for example because a connection was
lost, is repeated while the exporting transaction is open; earlier ones are not. A shape that cannot be read is skipped
from then on; its rows so far must be removed at the end.

Nothing outlives the exporting transaction: without it, no other connection can see the same rows. Upkeep deletes the
files read by then.
"""

import logging
from threading import Event
from typing import Final

from pyspark.sql import SparkSession

from flushtracker.config.postgres_config import TablesConfig
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.row_files import RowFiles
from flushtracker.errors import FlushtrackerError, PostgresUnavailableError, SinkError
from flushtracker.postgres.connection import Connection, require_open
from flushtracker.shape_log.snapshot.attempt_limits import SnapshotStoppedError, require_fitting, too_large
from flushtracker.shape_log.snapshot.progress import Progress
from flushtracker.shape_log.snapshot.read_job import ReadJob
from flushtracker.shape_log.snapshot.read_plan import ReadPlan, next_step
from flushtracker.shape_log.snapshot.read_ranges import ShapeReadError

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.5
_TRIES: Final = 3
_RETRY_PAUSE_S: Final = 1.0


class Reading:
    """``plan`` is for the readable shapes; ``failed`` has the others, with the reasons."""

    def __init__(
        self, spark: SparkSession, files: RowFiles, plan: ReadPlan, connection: Connection, progress: Progress
    ) -> None:
        self.plan = plan
        self.failed: dict[str, FlushtrackerError] = {}
        self._spark, self._row_files, self._connection, self._progress = spark, files, connection, progress
        self._files: list[WrittenFile] = []
        self._done = 0
        self.incomplete = set[str]()
        """The shapes that failed after some of their rows were written."""

    def run(self, config: TablesConfig, stop: Event) -> list[WrittenFile]:
        """Read everything; return the files, with all rows of the shapes of ``plan``, and some of incomplete ones.

        Raises:
            SnapshotStoppedError: ``stop`` was set before the end.
            TooLargeError: it takes too long.
            FlushtrackerError: no shape can be read, or the files cannot be written.
        """
        while self._done < len(self.plan.ranges) and self.plan.shapes:
            self._progress.step_done(self.plan, self._done, sum(file.rows for file in self._files))
            self._try_step(config, stop)
            require_fitting(self.plan, self._done, self._progress.seconds, config.max_attempt_ms / 1000)
        return self._files

    def _try_step(self, config: TablesConfig, stop: Event, tries: int = _TRIES) -> None:
        """Read one step, with retries: an ALTER TABLE that waits for its lock blocks all readers."""
        try:
            self._step(config, stop)
        except (PostgresUnavailableError, SinkError) as error:
            require_open(self._connection)
            if tries <= 1:
                raise
            logger.info("snapshot step retried ranges_done=%d: %s", self._done, error)
            stop.wait(_RETRY_PAUSE_S)
            self._try_step(config, stop, tries - 1)

    def _step(self, config: TablesConfig, stop: Event) -> None:
        numbers = next_step(self._done, len(self.plan.ranges), self._progress.seconds, config.connections)
        job = ReadJob(self._spark, self._row_files, self.plan, numbers, config.connections)
        try:
            self._await(job, config.max_attempt_ms / 1000, stop)
            self._files += job.written()
        except ShapeReadError as error:
            self.failed |= error.reasons
            self.plan = self.plan.without(error.reasons)
            if self._files:
                self.incomplete |= error.reasons.keys()
            return
        self._done = numbers.stop

    def _await(self, job: ReadJob, most_s: float, stop: Event) -> None:
        """Run the job to its end; check meanwhile that the snapshot's transaction is open."""
        job.start()
        try:
            while not job.wait(_POLL_S):
                if stop.is_set():
                    raise SnapshotStoppedError
                if self._progress.seconds > most_s:
                    raise too_large(self.plan, self._done, self._progress.seconds, most_s)
                require_open(self._connection)
                self._progress.poll(self.plan)
        finally:
            job.cancel()
