"""``SnapshotLoop``: takes the snapshots that are missing, once or at an interval."""

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import Final

from flushtracker.config.snapshot_config import SnapshotConfig
from flushtracker.config.units import seconds_text
from flushtracker.errors import BrokerError, FlushtrackerError, PostgresUnavailableError, SinkError, listed
from flushtracker.postgres.connection import connect_for_snapshot
from flushtracker.postgres.snapshot_export import locked_tables, primary_server
from flushtracker.process.clock import now_ms
from flushtracker.shape_log.snapshot.attempt_limits import SnapshotStoppedError, TooLargeError
from flushtracker.shape_log.snapshot.due_shapes import (
    SHAPES_PER_ATTEMPT,
    DueShapes,
    DueTable,
    due_shapes,
    require_known,
)
from flushtracker.shape_log.snapshot.failed_shapes import FailedShapes
from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus
from flushtracker.shape_log.snapshot.publish_config import PublishConfig
from flushtracker.shape_log.snapshot.snapshot_store import Outcome, SnapshotStore
from flushtracker.status.snapshot_status import ShapeFailure

logger = logging.getLogger(__name__)

_TRIES: Final = 3
_RETRY_PAUSE_S: Final = 1.0
_WAITING: Final = "capture has not said yet that all transactions before the shape are visible; retry soon"


class SnapshotLoop:
    """Takes the snapshots of ``store``'s shapes, as configured: once, if there is no trigger.

    ``shape_ids``: only these shapes; empty for all. ``again``: replace their existing snapshots, once.

    ``live`` is the status, readable from any thread; by default a new one.
    """

    def __init__(
        self,
        store: SnapshotStore,
        config: SnapshotConfig | PublishConfig,
        stop: Event,
        shape_ids: Sequence[str],
        *,
        again: bool,
        live: LiveSnapshotStatus | None = None,
    ) -> None:
        self.live = live or LiveSnapshotStatus()
        self._store, self._config, self._stop = store, config, stop
        self._shape_ids = shape_ids
        self._again = set(shape_ids) if again else set[str]()
        self._waiting: tuple[str, ...] = ()
        self._is_unknown = True
        """Whether the last check of the server and the tables failed."""
        self._failed = FailedShapes()
        self._most_shapes: dict[tuple[str, int], int] = {}
        """How many shapes of a table fit into one attempt, if known."""

    def run(self) -> None:
        """Take the snapshots that are due: once, or with an interval as trigger until the stop, with retries.

        Raises:
            FlushtrackerError: with ``available_now``, some snapshots could not be taken; the others were.
        """
        is_first, interval_ms = True, self._config.trigger_ms
        while not self._stop.is_set():
            failed: dict[str, FlushtrackerError] = {}
            self.live.note_looking()
            try:
                failed = self._take_due(is_first=is_first)
            except (PostgresUnavailableError, SinkError, BrokerError) as error:
                if interval_ms is None:
                    raise
                self._is_unknown = True
                self.live.note_server_error(error)
                logger.warning("snapshots not taken, retrying: %s", error)
            is_first = False
            if interval_ms is None:
                _raise_any(failed)
                return
            self.live.note_pause(now_ms() + interval_ms)
            self._stop.wait(interval_ms / 1000)

    def _take_due(self, *, is_first: bool) -> dict[str, FlushtrackerError]:
        """Take each table's snapshots; return the shapes that got none, with the reasons."""
        if not (self._is_unknown or self._store.has_changed() or self._failed.is_any_due(now_ms())):
            self.live.note_looked()
            return {}
        due = self._due(is_first=is_first)
        self._is_unknown = False
        self._note(due)
        failed: dict[str, FlushtrackerError] = {
            shape_id: PostgresUnavailableError(_WAITING) for shape_id in due.waiting if shape_id in self._shape_ids
        }
        groups = deque(sorted(due.tables, key=lambda group: self._order(group, due.locked)))
        while groups:
            found = self._take_table(groups.popleft())
            failed |= found
            if groups and self._must_check(found.values()):
                # An owner may keep many tables locked: other shapes that are due by now go before the next of them.
                self._is_unknown = True
                break
        return failed

    def _order(self, group: DueTable, locked: Set[int]) -> tuple[bool, int]:
        """Tables that nobody keeps locked first, then those that have failed least often."""
        tries = (self._failed.tries((group.source, entry.definition.id)) for entry in group.shapes)
        return not locked.isdisjoint(group.oids), max(tries)

    def _must_check(self, errors: Iterable[FlushtrackerError]) -> bool:
        """Whether to check again what is due, because an attempt failed for a lock, or the server is away."""
        is_away = any(isinstance(error, PostgresUnavailableError) for error in errors)
        return is_away and self._config.trigger_ms is not None

    def _due(self, *, is_first: bool) -> DueShapes:
        with closing(connect_for_snapshot(self._config.postgres.connection)) as connection:
            server, locked = primary_server(connection), locked_tables(connection)
        registry = self._store.registry()
        if is_first:
            require_known(registry, server, self._shape_ids, self._store.takes)
        due = due_shapes(registry, self._store.taken(), server, self._shape_ids, self._again, self._store.takes)
        return replace(due, locked=locked)

    def _note(self, due: DueShapes) -> None:
        if due.waiting != self._waiting:
            self._waiting = due.waiting
            if due.waiting:
                logger.info("%s shapes=%s", _WAITING, listed(due.waiting, 10))
        left = Counter[tuple[str, str]]()
        for group in due.tables:
            left[group.source, _name(group)] += len(group.shapes)
        self.live.note_due(left, len(due.waiting))
        self._failed.keep({(group.source, entry.definition.id) for group in due.tables for entry in group.shapes})
        self.live.note_failures(self._failed.all())

    def _take_table(self, group: DueTable) -> dict[str, FlushtrackerError]:
        """Take the snapshots of all shapes on one table, in as many attempts as needed.

        An attempt that is too large is repeated for half of its shapes.
        """
        failed: dict[str, FlushtrackerError] = {}
        table, at_ms = (group.source, group.table.oid), now_ms()
        rest = group.without(lambda shape_id: self._failed.is_postponed((group.source, shape_id), at_ms))
        while rest.shapes and not self._stop.is_set():
            part, others = rest.divided(self._most_shapes.get(table, SHAPES_PER_ATTEMPT))
            try:
                found = self._take(part)
            except TooLargeError as error:
                self._most_shapes[table] = (len(part.shapes) + 1) // 2
                logger.info("snapshot divided table=%s shapes=%d: %s", _name(group), len(part.shapes), error)
                continue
            except SnapshotStoppedError as stopped:
                logger.info("snapshot not taken table=%s: %s", _name(group), stopped)
                break
            failed |= found
            if self._must_check(found.values()):
                # Each attempt would wait for the table's lock again.
                break
            rest = others
        return failed

    def _take(self, group: DueTable) -> Mapping[str, FlushtrackerError]:
        """Make one attempt; raises ``TooLargeError`` if it can be divided, or ``SnapshotStoppedError``."""
        names, table, started_s = [entry.definition.id for entry in group.shapes], _name(group), time.monotonic()
        logger.info("snapshot started table=%s source=%s shapes=%d", table, group.source, len(names))
        try:
            outcome = self._try_to_take(group)
        except SnapshotStoppedError:
            raise
        except FlushtrackerError as error:
            if isinstance(error, TooLargeError) and len(names) > 1:
                raise
            outcome = Outcome(failed=dict.fromkeys(names, error), seconds=time.monotonic() - started_s)
        finally:
            self.live.note_attempt(None)
        if outcome.taken:
            logger.info(
                "snapshot taken table=%s source=%s shapes=%d rows=%d seconds=%.1f rows_per_s=%d",
                *(table, group.source, len(outcome.taken), outcome.rows, outcome.seconds),
                outcome.rows / outcome.seconds,
            )
        self._record(group, outcome)
        return outcome.failed

    def _try_to_take(self, group: DueTable, tries: int = _TRIES) -> Outcome:
        """Take a snapshot, with retries: a TRUNCATE that waits for the table blocks all readers after the first."""
        try:
            return self._store.take(group, self._stop, self.live)
        except PostgresUnavailableError as error:
            if tries <= 1 or self._stop.wait(_RETRY_PAUSE_S):
                raise
            logger.info("snapshot retried table=%s: %s", _name(group), error)
        return self._try_to_take(group, tries - 1)

    def _record(self, group: DueTable, outcome: Outcome) -> None:
        table = _name(group)
        self._again -= set(outcome.taken)
        self._failed.forget((group.source, shape_id) for shape_id in outcome.taken)
        added = self._failed.add(group.source, table, outcome.failed, now_ms(), int(outcome.seconds * 1000))
        alike: dict[tuple[str, int], list[ShapeFailure]] = {}
        for failure in added:
            alike.setdefault((failure.reason, failure.tries), []).append(failure)
        for (reason, tries), failures in alike.items():
            # A server that is temporarily unavailable, for example during a promotion, needs no correction by anyone.
            is_away = isinstance(outcome.failed[failures[0].shape_id], PostgresUnavailableError)
            will_retry = self._config.trigger_ms is not None
            wait = (
                "none" if self._config.trigger_ms is None else seconds_text((failures[0].retry_at_ms - now_ms()) / 1000)
            )
            logger.log(
                logging.WARNING if is_away and will_retry else logging.ERROR,
                "snapshot failed table=%s tries=%d retry_in=%s shapes=%s: %s",
                *(table, tries, wait, listed([failure.shape_id for failure in failures], 10), reason),
            )
        self.live.note_taken((group.source, table), len(outcome.taken), outcome.rows)
        self.live.note_failures(self._failed.all())


def _name(group: DueTable) -> str:
    return ".".join(group.table.table)


def _raise_any(failed: dict[str, FlushtrackerError]) -> None:
    """Raise one error for all shapes, of the first error's class."""
    if not failed:
        return
    error = next(iter(failed.values()))
    reasons = len({str(each) for each in failed.values()})
    others = f" ({reasons - 1} more reasons are in the log)" if reasons > 1 else ""
    raise type(error)(f"no snapshot of {listed(list(failed))}: {error}{others}")
