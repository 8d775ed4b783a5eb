"""``BatchDriver``: the driver's side of a micro-batch, the part all jobs share.

Spark calls :meth:`BatchDriver.handle_batch` at least once for each batch, with the state of that batch on disk but not
yet committed. If it raises, Spark does not commit the batch and the query ends; the next driver's query reruns it.
"""

import logging
import time
from threading import Lock

from pyspark.sql import DataFrame

from flushtracker.errors import FencedError, FlushtrackerError
from flushtracker.spark.committed_state import Remedies
from flushtracker.spark.live_query import LiveQuery

logger = logging.getLogger(__name__)


class BatchStoppedError(FlushtrackerError):
    """The job was stopped before this batch began; none of the batch was processed."""

    exit_code = 0


class BatchDriver:
    """Handles one batch at a time, and holds ``lock`` meanwhile.

    ``last_batch_id`` is the last batch that began, ``finished_batch_id`` the last that was handled without an error.
    Both are recorded in ``live``, which so shows for how long a batch has been running.
    """

    def __init__(self, remedies: Remedies, live: LiveQuery) -> None:
        self._remedies = remedies
        self._live = live
        self.lock = Lock()
        self.failure: BaseException | None = None
        self.last_batch_id: int | None = None
        self.finished_batch_id: int | None = None
        self.expected_batch_id = 0
        self.stopping = False

    def handle_batch(self, batch: DataFrame, batch_id: int) -> None:
        """The function for ``foreachBatch``. Keeps exceptions in ``failure``, because Spark reduces them to text."""
        try:
            with self.lock, self._live.processing():
                started = time.monotonic()
                self._begin(batch_id)
                self.process(batch, batch_id)
                self.finished_batch_id = batch_id
                self._live.batch_done(batch_id, int((time.monotonic() - started) * 1000))
        except BaseException as error:
            self.failure = error
            raise

    def _begin(self, batch_id: int) -> None:
        if self.stopping:
            raise BatchStoppedError(f"stopped before batch {batch_id}")
        if batch_id != self.expected_batch_id:
            # Batches that were planned but are not in the committed state would be skipped, along with their shapes.
            raise FencedError(
                f"the checkpoint continues with batch {batch_id}, but its last committed state is that of batch "
                f"{self.expected_batch_id - 1}, so this driver has been fenced by another driver, or the checkpoint "
                f"is incomplete: let only one driver run, restore a complete copy, or {self._remedies.start_over}"
            )
        # Spark has written the batch's offsets, and no task has run yet. The next driver claims the table before its
        # Spark reads offsets. So either it finds these and runs the same batch, or this driver fails here before it
        # writes any state, which would replace that of another batch with the same number.
        self.require_not_fenced()
        self.last_batch_id = batch_id
        self.expected_batch_id = batch_id + 1

    def require_not_fenced(self) -> None:
        """Raise ``SinkError`` if another driver writes to this job's table."""
        raise NotImplementedError

    def process(self, batch: DataFrame, batch_id: int) -> None:
        """Process the rows of the job's state function. Each action on ``batch`` would run that again."""
        raise NotImplementedError
