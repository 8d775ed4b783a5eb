"""``UpkeepThread``: keeps the shape log in order while the job writes it."""

import logging
from datetime import datetime, timedelta, timezone
from threading import Event, Thread
from types import TracebackType
from typing import Final

from flushtracker.config.write_config import LogConfig
from flushtracker.delta.log.shape_log_upkeep import ShapeLogUpkeep

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 5.0


class UpkeepThread:
    """Runs the upkeep of ``sink`` now and then, inside its block; what fails is logged and tried again.

    Both tables exist already. Only one writer at a time has the log, so only one does this.
    """

    def __init__(self, sink: LogConfig) -> None:
        delete_after = None if sink.delete_after_ms is None else timedelta(milliseconds=sink.delete_after_ms)
        self._upkeep = ShapeLogUpkeep(
            sink.log, sink.shapes, delete_after=delete_after, storage_options=sink.storage_options
        )
        self._stop = Event()
        self._thread = Thread(target=self._run, name="upkeep", daemon=True)

    def __enter__(self) -> "UpkeepThread":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        # What it is merging is not committed, and is deleted later.
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        # At once: jobs that read what is available and end may never last a period.
        self.run_once()
        while not self._stop.wait(_PERIOD_S):
            self.run_once()

    def run_once(self) -> None:
        """Do what is due."""
        try:
            done = self._upkeep.run(datetime.now(timezone.utc))
        except Exception as error:  # noqa: BLE001  it must not end the upkeep, let alone the job
            logger.warning("upkeep failed, and is tried again: %s", error)
            return
        if done.merges or done.deleted_shapes or done.vacuumed_files:
            logger.info(
                "upkeep merges=%d rewritten_bytes=%d deleted_shapes=%d vacuumed_files=%d",
                *(done.merges, done.rewritten_bytes, done.deleted_shapes, done.vacuumed_files),
            )
