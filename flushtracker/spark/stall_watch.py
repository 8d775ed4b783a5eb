"""``StallWatch``: detects a dead writer even on a quiet table, where no micro-batch runs."""

import logging
import time
from threading import Event, Thread
from typing import Final

from flushtracker.spark.driver import AckDriver
from flushtracker.wal.log_offset import LogOffset

logger = logging.getLogger(__name__)

_SHORTEST_TICK_S: Final = 0.1
_LONGEST_TICK_S: Final = 10.0


class StallWatch:
    """A thread that logs each shape that has made no progress for ``grace_ms``, once per stall.

    It only reads what the driver already knows, under the driver's lock. Use it as a context manager.
    """

    def __init__(self, driver: AckDriver, grace_ms: int) -> None:
        self._driver = driver
        self._grace_ms = grace_ms
        self._tick_s = min(max(grace_ms / 4000, _SHORTEST_TICK_S), _LONGEST_TICK_S)
        self._stop = Event()
        self._logged: set[tuple[str, str, LogOffset]] = set()
        self._thread = Thread(target=self._run, name="stall-watch", daemon=True)

    def __enter__(self) -> "StallWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._tick_s):
            self._tick(int(time.time() * 1000))

    def _tick(self, now_ms: int) -> None:
        stalled = {
            (source, blocking.shape_id, blocking.pending.last_flushed): now_ms - blocking.pending.since_ms
            for source, blocking in self._driver.stalled(now_ms, self._grace_ms)
        }
        for source, shape_id, last_flushed in sorted(stalled.keys() - self._logged):
            logger.warning(
                "shape stalled source=%s shape_id=%s last_flushed=%s waited_ms=%d",
                source,
                shape_id,
                last_flushed,
                stalled[source, shape_id, last_flushed],
            )
        for source, shape_id, last_flushed in sorted(self._logged - stalled.keys()):
            logger.info("shape no longer stalled source=%s shape_id=%s was_at=%s", source, shape_id, last_flushed)
        self._logged = set(stalled)
