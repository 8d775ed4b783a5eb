"""``FailedShapes``: the shapes that failed, how often in a row, and when each may be retried.

A shape waits twice as long after each failure in a row, up to an hour, and at least as long as the attempt took. So a
table that is too large is read, and vacuum held back, at most half of the time.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from flushtracker.errors import FlushtrackerError
from flushtracker.shape_log.shape_snapshot import ShapeKey
from flushtracker.status.snapshot_status import ShapeFailure

FIRST_WAIT_MS: Final = 5_000
MOST_WAIT_MS: Final = 3_600_000


class FailedShapes:
    """Times are arguments, in milliseconds since 1970."""

    def __init__(self) -> None:
        self._failures: dict[ShapeKey, ShapeFailure] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def add(
        self, source: str, table: str, failed: Mapping[str, FlushtrackerError], at_ms: int, took_ms: int
    ) -> list[ShapeFailure]:
        added = []
        for shape_id, error in failed.items():
            last = self._failures.get((source, shape_id))
            tries, since_ms = (1, at_ms) if last is None else (last.tries + 1, last.since_ms)
            wait_ms = max(wait_ms_after(tries), took_ms)
            failure = ShapeFailure(source, shape_id, table, str(error), tries, since_ms, at_ms + wait_ms)
            self._failures[source, shape_id] = failure
            added.append(failure)
        return added

    def forget(self, keys: Iterable[ShapeKey]) -> None:
        """Forget shapes that have a snapshot now, or no longer need one."""
        for key in keys:
            self._failures.pop(key, None)

    def keep(self, keys: Collection[ShapeKey]) -> None:
        """Forget all other shapes."""
        self.forget([key for key in self._failures if key not in keys])

    def is_postponed(self, key: ShapeKey, at_ms: int) -> bool:
        """Whether the shape has failed and may not be retried yet."""
        failure = self._failures.get(key)
        return failure is not None and failure.retry_at_ms > at_ms

    def tries(self, key: ShapeKey) -> int:
        """How often in a row the shape has failed."""
        failure = self._failures.get(key)
        return 0 if failure is None else failure.tries

    def is_any_due(self, at_ms: int) -> bool:
        return any(failure.retry_at_ms <= at_ms for failure in self._failures.values())

    def all(self) -> list[ShapeFailure]:
        """All failures, in retry order."""
        return sorted(self._failures.values(), key=lambda failure: (failure.retry_at_ms, failure.shape_id))


def wait_ms_after(tries: int) -> int:
    """How long to wait after ``tries`` failures in a row.

    >>> [wait_ms_after(tries) // 1000 for tries in (1, 2, 3, 10, 11, 5000)]
    [5, 10, 20, 2560, 3600, 3600]
    """
    return min(MOST_WAIT_MS, FIRST_WAIT_MS << min(tries - 1, 20))
