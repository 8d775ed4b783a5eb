"""``SnapshotThread``: takes the snapshots of new shapes while the job writes them (``snapshot: auto``)."""

import logging
from threading import Event
from types import TracebackType
from typing import Final

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from flushtracker.config.snapshot_config import SnapshotConfig
from flushtracker.jobs.snapshot.snapshot_loop import SnapshotLoop

logger = logging.getLogger(__name__)

PERIOD_S: Final = 2.0
_STOP_TIMEOUT_S: Final = 10.0


class SnapshotThread:
    """Looks for shapes without a snapshot again and again, inside its block; what fails is logged and tried again."""

    def __init__(self, spark: SparkSession, config: SnapshotConfig) -> None:
        self._spark, self._config = spark, config
        self._stop = Event()
        self._last_error = ""
        self._thread = InheritableThread(target=self._run, name="snapshots", daemon=True)

    def __enter__(self) -> "SnapshotThread":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        # What is being read then is not appended.
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                SnapshotLoop(self._spark, self._config, self._stop, (), again=False).run()
            except Exception as error:  # noqa: BLE001  it must not end the job, which also works without snapshots
                if str(error) != self._last_error:
                    logger.warning("no snapshots are taken, and it is tried again: %s", error)
                self._last_error = str(error)
            self._stop.wait(PERIOD_S)
