"""``Observer``: reads the slot, the acks and the shapes again and again, and reports them to the history.

The order matters: what the slot and the ack cover must be in shapes that are read after them.
"""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from threading import Lock
from typing import Final

from flushtracker.errors import ConfigError, DecodeError, PostgresError, ShapeEndedError, SinkError, SlotError
from flushtracker.postgres.connection import connect, rows
from flushtracker.postgres.shape_rows import shape_rows
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.tracking.acks.ack_reader import AckReader, read_ack_history
from flushtracker.trials.loop_trial.bank_workload import ACCOUNTS, ACCOUNTS_SHAPE, LEDGER_SHAPES
from flushtracker.trials.loop_trial.history import History
from flushtracker.trials.loop_trial.http_readers import HttpReaders
from flushtracker.trials.loop_trial.trial_setup import TrialSetup
from flushtracker.trials.recordings.verify import differences, row_difference
from flushtracker.wal.lsn import parse_lsn

_POLL_S: Final = 0.2
_SLOT: Final = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"


class Observer:
    """``raise_failure`` is called before each reading; ``lock`` guards the history."""

    def __init__(self, setup: TrialSetup, history: History, lock: Lock, raise_failure: Callable[[], None]) -> None:
        self._setup = setup
        self._history = history
        self._lock = lock
        self._raise_failure = raise_failure
        self._acks = AckReader(setup.acks, setup.storage_options)
        self._reader: ShapeLogReader | None = None
        self._source: str | None = None

    def await_shapes(self, timeout_s: float) -> bool:
        """Wait until each shape can be read; returns false after the timeout."""
        ids = [definition.id for definition in load_shapes(self._setup.shapes_file)]
        return self._wait(lambda: all(map(self._can_read, ids)), timeout_s)

    def observe(self) -> None:
        """Read everything once: the slot, the acks, then the shapes."""
        self._raise_failure()
        confirmed_lsn = self._confirmed_lsn()
        if self._source is None:
            self._source = next(iter(self._acks.last_rows()), None)
        ack_lsn = None if self._source is None else self._acks.last_ack(self._source)
        if confirmed_lsn is not None:
            with self._lock:
                self._history.observe_slot(confirmed_lsn, ack_lsn)
        self._read_shapes()

    def observe_for(self, seconds: float) -> None:
        """Repeat :meth:`observe` for this time, at least once."""
        deadline = time.monotonic() + seconds
        self.observe()
        while (left_s := deadline - time.monotonic()) > 0 and not self._history.violations:
            time.sleep(min(_POLL_S, left_s))
            self.observe()

    def await_progress(self, timeout_s: float) -> bool:
        """Repeat :meth:`observe` until the slot advances; returns whether it has, or a rule was violated."""
        before = self._history.confirmed_lsn

        def has_advanced() -> bool:
            self.observe()
            return self._history.confirmed_lsn > before or bool(self._history.violations)

        return self._wait(has_advanced, timeout_s)

    def check_end(self, timeout_s: float, readers: HttpReaders) -> None:
        """Wait until everything is confirmed, then make the final checks; the workload must have stopped."""
        with closing(connect(self._setup.connection)) as connection:
            ((end,),) = rows(connection, "SELECT pg_current_wal_insert_lsn()::text")

        def is_confirmed() -> bool:
            self.observe()
            return self._history.confirmed_lsn >= parse_lsn(end) or bool(self._history.violations)

        if not self._wait(is_confirmed, timeout_s):
            self._history.violate("live", f"the slot has not reached {end} after {timeout_s:.0f} s without changes")
            return
        self.observe()
        if self._history.violations:
            return
        acks = read_ack_history(self._setup.acks, self._setup.storage_options).acks
        # The table has no order of its own, so use the commit times.
        self._history.observe_acks([ack.ack_lsn for ack in sorted(acks, key=lambda each: each.acked_at)])
        with self._lock:
            self._history.end()
        self._check_folds()
        self._check_readers(readers, timeout_s)

    def _check_folds(self) -> None:
        shapes = {definition.id: definition for definition in load_shapes(self._setup.shapes_file)}
        with closing(connect(self._setup.connection)) as connection:
            table_rows = partial(shape_rows, connection)
            for shape_id, _, difference in differences(self._open(), shapes, table_rows):
                if difference is not None:
                    self._history.violate("fold", f"{shape_id} differs from its query: {difference}")

    def _check_readers(self, readers: HttpReaders, timeout_s: float) -> None:
        """Wait until the client of each shape has the rows of its query."""
        definitions = load_shapes(self._setup.shapes_file)
        with closing(connect(self._setup.connection)) as connection:
            rows_of = {definition.id: shape_rows(connection, definition) for definition in definitions}
        what = dict[str, str]()

        def are_equal() -> bool:
            self._raise_failure()
            what.clear()
            for shape_id, expected in rows_of.items():
                found = readers.rows(shape_id)
                difference = "is not up to date" if found is None else row_difference(expected, found)
                if difference is not None:
                    what[shape_id] = difference
            return not what or bool(self._history.violations)

        if not self._wait(are_equal, timeout_s):
            shape_id, difference = next(iter(what.items()))
            fact = f"over HTTP, {shape_id} differs from its query after {timeout_s:.0f} s: it {difference}"
            self._history.violate("http", fact)

    def _confirmed_lsn(self) -> int | None:
        """Return the slot's confirmed LSN, or ``None`` while the server cannot be asked."""
        try:
            with closing(connect(self._setup.connection)) as connection:
                found = rows(connection, _SLOT, [self._setup.name])
        except PostgresError:
            return None
        if not found:
            raise SlotError(f"the replication slot {self._setup.name} is gone: somebody else has dropped it")
        return parse_lsn(found[0][0])

    def _read_shapes(self) -> None:
        try:
            for shape_id in LEDGER_SHAPES:
                table = self._open().read_rows(shape_id).rows
                found = zip(*(map(int, table[name].to_pylist()) for name in ("txn", "part")), strict=True)
                with self._lock:
                    self._history.observe_ledger(shape_id, found)
            balances = [int(text) for text in self._open().read_rows(ACCOUNTS_SHAPE).rows["balance"].to_pylist()]
            with self._lock:
                self._history.observe_accounts(balances, ACCOUNTS)
        except (ShapeEndedError, DecodeError) as error:
            # No shape may end without a reason, and every log must fold.
            self._history.violate("exact", str(error))

    def _can_read(self, shape_id: str) -> bool:
        self._raise_failure()
        try:
            self._open().finder.find_rows(shape_id, None, None, typed=False, even_if_ended=False)
        except (ConfigError, SinkError):
            # The tables do not exist yet, the writers do not know the shape, or it waits for its snapshot.
            return False
        return True

    def _open(self) -> ShapeLogReader:
        if self._reader is None:
            self._reader = ShapeLogReader(self._setup.log, self._setup.registry, self._setup.storage_options)
        return self._reader

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True
