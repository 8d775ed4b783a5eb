"""``SnapshotLoop``: takes the snapshots that are missing, once or at an interval."""

import logging
from collections.abc import Sequence
from contextlib import closing
from threading import Event
from typing import Final

from pyspark.sql import SparkSession

from flushtracker.config.snapshot_config import SnapshotConfig
from flushtracker.delta.log.snapshots import snapshot_attempts
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import FlushtrackerError, PostgresUnavailableError, SinkError, listed
from flushtracker.jobs.snapshot.attempt import Outcome, SnapshotStoppedError, take_snapshot
from flushtracker.jobs.snapshot.due_shapes import DueShapes, TableShapes, due_shapes, require_known
from flushtracker.postgres.connection import connect_for_snapshot
from flushtracker.postgres.snapshot_export import primary_server

logger = logging.getLogger(__name__)

_TRIES: Final = 3
_RETRY_PAUSE_S: Final = 1.0
_WAITING: Final = "capture has not said yet that all transactions before the shape are visible; retry soon"


class SnapshotLoop:
    """``shape_ids``: only these shapes; empty for all. ``again``: replace the snapshots that they have, once."""

    def __init__(
        self, spark: SparkSession, config: SnapshotConfig, stop: Event, shape_ids: Sequence[str], *, again: bool
    ) -> None:
        self._spark, self._config, self._stop = spark, config, stop
        self._shape_ids = shape_ids
        self._again = set(shape_ids) if again else set[str]()
        self._registry = RegistryTable(config.sink.shapes, config.sink.storage_options)
        self._waiting: tuple[str, ...] = ()
        self._has_failed = False
        self._reported: dict[str, str] = {}

    def run(self) -> None:
        """Take the snapshots that are due: once, or with an interval as trigger until the stop, with retries.

        Raises:
            FlushtrackerError: with ``available_now``, some snapshots could not be taken; the others were.
        """
        is_first, interval_ms = True, self._config.trigger_ms
        while not self._stop.is_set():
            try:
                failed = self._take_due(is_first=is_first)
            except (PostgresUnavailableError, SinkError) as error:
                if interval_ms is None:
                    raise
                logger.warning("snapshots not taken, retrying: %s", error)
                failed, self._has_failed = {}, True
            is_first = False
            if interval_ms is None:
                _raise_any(failed)
                return
            self._stop.wait(interval_ms / 1000)

    def _take_due(self, *, is_first: bool) -> dict[str, FlushtrackerError]:
        """Take each table's snapshots; returns the shapes that could get none, with the reasons."""
        if not (is_first or self._has_failed or self._registry.has_changed()):
            return {}
        due = self._due(is_first=is_first)
        if due.waiting != self._waiting:
            self._waiting = due.waiting
            if due.waiting:
                logger.info("%s shapes=%s", _WAITING, listed(due.waiting, 10))
        failed: dict[str, FlushtrackerError] = {
            shape_id: PostgresUnavailableError(_WAITING) for shape_id in due.waiting if shape_id in self._shape_ids
        }
        for group in due.tables:
            if self._stop.is_set():
                break
            failed |= self._take(group)
        self._has_failed = bool(failed)
        return failed

    def _due(self, *, is_first: bool) -> DueShapes:
        with closing(connect_for_snapshot(self._config.postgres.connection)) as connection:
            server = primary_server(connection)
        sink, registry = self._config.sink, self._registry.entries()
        if is_first:
            require_known(registry, server, self._shape_ids)
        taken = snapshot_attempts(sink.log, sink.storage_options)
        return due_shapes(registry, taken, server, self._shape_ids, self._again)

    def _take(self, group: TableShapes) -> dict[str, FlushtrackerError]:
        names = [entry.definition.id for entry in group.shapes]
        table = ".".join(group.table.table)
        logger.info("snapshot started table=%s source=%s shapes=%d", table, group.source, len(names))
        try:
            outcome = self._try_to_take(group, table)
        except SnapshotStoppedError as stopped:
            logger.info("snapshot not taken table=%s: %s", table, stopped)
            return {}
        except FlushtrackerError as error:
            outcome = Outcome(failed=dict.fromkeys(names, error))
        if outcome.taken:
            logger.info(
                "snapshot taken table=%s source=%s shapes=%d rows=%d seconds=%.1f rows_per_s=%d",
                *(table, group.source, len(outcome.taken), outcome.rows, outcome.seconds),
                outcome.rows / outcome.seconds,
            )
        self._again -= set(outcome.taken)
        self._report(table, outcome)
        return outcome.failed

    def _try_to_take(self, group: TableShapes, table: str, tries: int = _TRIES) -> Outcome:
        """Take a snapshot, with retries: a TRUNCATE that waits for the table blocks all readers after the first."""
        try:
            return take_snapshot(self._spark, self._config, group, self._stop)
        except PostgresUnavailableError as error:
            if tries <= 1 or self._stop.wait(_RETRY_PAUSE_S):
                raise
            logger.info("snapshot retried table=%s: %s", table, error)
        return self._try_to_take(group, table, tries - 1)

    def _report(self, table: str, outcome: Outcome) -> None:
        """Log each new reason once, with its shapes."""
        shapes: dict[str, list[str]] = {}
        for shape_id, error in outcome.failed.items():
            if self._reported.get(shape_id) != str(error):
                shapes.setdefault(str(error), []).append(shape_id)
                self._reported[shape_id] = str(error)
        for reason, shape_ids in shapes.items():
            logger.error("snapshot failed table=%s shapes=%s: %s", table, listed(shape_ids, 10), reason)
        for shape_id in outcome.taken:
            self._reported.pop(shape_id, None)


def _raise_any(failed: dict[str, FlushtrackerError]) -> None:
    """Raise one error for all shapes, of the first error's class."""
    if not failed:
        return
    error = next(iter(failed.values()))
    reasons = len({str(each) for each in failed.values()})
    others = f" ({reasons - 1} more reasons are in the log)" if reasons > 1 else ""
    raise type(error)(f"no snapshot of {listed(list(failed))}: {error}{others}")
