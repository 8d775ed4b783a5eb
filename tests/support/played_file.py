"""The shapes file of a history: defines shapes of each kind on the tables that there are, and waits for capture."""

import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any, Final

from flushtracker.errors import PostgresError
from flushtracker.postgres.connection import rows
from flushtracker.postgres.replica_identity import without_identity
from flushtracker.postgres.table_bindings import read_bindings
from flushtracker.shapes.unpublished import is_unpublished
from flushtracker.wal.lsn import parse_lsn
from tests.support.capture_rig import CaptureRig, shape
from tests.support.controlled_capture import ControlledCapture
from tests.support.schema_history import TABLES
from tests.support.schema_judge import PlayedShape, SchemaJudge
from tests.support.schema_sessions import HistorySessions
from tests.support.schema_statements import KINDS, LISTED, PART, SELECTING, WHERE

_PAUSE_S: Final = 0.01
_PROGRESS_S: Final = 40.0
_DELAY_S: Final = 1.0
# The tables that shapes are tried on: those without any key only if all that they have is sent.
_FIT: Final = """
SELECT c.relname, bool_and(l.relreplident = 'f')
FROM pg_class c
JOIN LATERAL (
  SELECT c.relreplident WHERE c.relkind = 'r'
  UNION ALL SELECT p.relreplident FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid WHERE t.isleaf
) l ON true
WHERE c.relnamespace = to_regnamespace('public') AND c.relname = ANY(%s) AND c.relkind IN ('r', 'p')
GROUP BY c.oid, c.relname
HAVING bool_and(l.relreplident = 'f')
  OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident))
"""


_OIDS: Final = """
SELECT relname, oid::bigint FROM pg_class WHERE relnamespace = to_regnamespace('public') AND relname = ANY(%s)
"""


class NotAddedError(AssertionError):
    """Shapes were neither added nor refused."""


class PlayedFile:
    """``require_running`` starts capture again where it may have ended, and raises an error otherwise."""

    def __init__(
        self,
        rig: CaptureRig,
        capture: ControlledCapture,
        judge: SchemaJudge,
        sessions: HistorySessions,
        require_running: Callable[[], None],
        *,
        is_managed: bool,
    ) -> None:
        self._rig = rig
        self._capture = capture
        self._judge = judge
        self._sessions = sessions
        self._require_running = require_running
        self._defined = 0
        self._wal_end = 0
        self._is_managed = is_managed
        self._unwatched: set[str] = set()
        """The shapes that may be added at any time, because they waited for somebody to publish their tables."""
        self.counts: Counter[str] = Counter()
        self.shapes: dict[str, PlayedShape] = {}

    @property
    def added(self) -> list[PlayedShape]:
        """The shapes that were added."""
        return [shape for shape in self.shapes.values() if shape.first is not None]

    @property
    def pending(self) -> list[PlayedShape]:
        """The shapes that were neither added nor refused yet."""
        return [shape for shape in self.shapes.values() if shape.first is None]

    def is_live(self, played: PlayedShape) -> bool:
        """Whether a shape is defined, and has not ended."""
        entry = self._judge.entries.get(played.id)
        return not played.is_removed and (entry is None or entry.removed_at is None)

    def renew(self) -> None:
        """Define a shape of each kind on each table that has none, and wait until they are added if capture runs."""
        self._sessions.roll_back_locks()
        if self._capture.is_running:
            self.note_wal_end()
        self._judge.read()
        live = {(each.table, each.kind) for each in self.shapes.values() if self.is_live(each)}
        tables = [f"t{number}" for number in range(TABLES)]
        parts = [f"{table}{PART.get(kind, '')}" for table in tables for kind in KINDS]
        fit = dict(rows(self._sessions.main, _FIT, (parts,)))
        for table, kind in product(tables, KINDS):
            is_full = fit.get(f"{table}{PART.get(kind, '')}")
            if (table, kind) not in live and is_full is not None and (kind != "text" or is_full):
                shape_id = f"{table}-{kind}-{self._defined}"
                self._defined += 1
                self.shapes[shape_id] = PlayedShape(shape_id, table, kind, self._defined % 3 != 0)
        self._define()
        if self._capture.is_running:
            self.wait_until_added()

    def remove(self, table: str) -> None:
        """Remove the shapes of a table."""
        self._judge.read()
        for played in list(self.shapes.values()):
            if played.table == table and self.is_live(played):
                played.is_removed = True
                if played.first is None:
                    del self.shapes[played.id]
        self._define()

    def note_wal_end(self) -> None:
        """Note that what is added from now on starts with the rows that its table has by then."""
        ((text,),) = rows(self._sessions.main, "SELECT pg_current_wal_flush_lsn()::text")
        self._wal_end = parse_lsn(text)

    def wait_until_added(self) -> None:
        """Wait until each shape is registered, or refused, with capture running.

        Wait only briefly for shapes that an open transaction may delay.
        """
        log_from, deadline, delayed = 0, time.monotonic() + _PROGRESS_S, time.monotonic() + _DELAY_S
        while pending := self._addable():
            self._judge.read()
            added = [played for played in pending if played.id in self._judge.entries]
            for played in added:
                self._take_first(played)
            # Also those that would wait if they were not refused: until then, the whole file is not applied.
            refused = self.drop_refused(log_from)
            if refused:
                log_from, deadline = len(self._capture.log()), time.monotonic() + _PROGRESS_S
            if added or refused:
                delayed = time.monotonic() + _DELAY_S
            self._require_running()
            if time.monotonic() > delayed:
                if self._sessions.are_open:
                    return
                # Capture delays shapes until the slot is past what was published too late for them.
                self.acknowledge()
                delayed = time.monotonic() + _DELAY_S
            if time.monotonic() > deadline:
                ids = ", ".join(each.id for each in pending)
                raise NotAddedError(f"shapes are not added: {ids}; {self._capture.log()[-500:]}")
            time.sleep(_PAUSE_S)

    def acknowledge(self) -> None:
        """Acknowledge all that is published."""
        if self._capture.has_source:
            self._rig.acknowledge(self._judge.published_lsn)

    def _addable(self) -> list[PlayedShape]:
        """The pending shapes, without those that wait until somebody else publishes their tables."""
        pending = self.pending
        oids = dict(rows(self._sessions.main, _OIDS, ([shape.on for shape in pending],)))
        try:
            tables = read_bindings(self._sessions.main, "shapes", oids.values())
            waiting = {oid for oid, table in tables.items() if is_unpublished(table)}
            if self._is_managed:
                waiting &= without_identity(self._sessions.main, "shapes", dict.fromkeys(waiting, ())).keys()
        except PostgresError:
            waiting = set()
        self._unwatched |= {shape.id for shape in pending if oids.get(shape.on) in waiting}
        self.counts["shapes that wait to be published"] += len(waiting)
        return [shape for shape in pending if oids.get(shape.on) not in waiting]

    def _define(self) -> None:
        live = [each for each in self.shapes.values() if self.is_live(each)]
        self._rig.define(*(_definition(each) for each in live), allow_removing=1000)

    def drop_refused(self, log_from: int) -> bool:
        """Define no longer the pending shapes that were refused, by the log from there on or by the start that failed.

        If their table is the reason, these are all of its pending shapes. Returns whether there were any.
        """
        refused, pending = self._capture.refused(log_from), self.pending
        tables = {shape.on for shape in pending if refused.get(shape.id, "").startswith(f"table public.{shape.on} ")}
        dropped = [shape.id for shape in pending if shape.id in refused or shape.on in tables]
        for shape_id in dropped:
            del self.shapes[shape_id]
            self.counts["shapes refused"] += 1
        if dropped:
            self._define()
            if not self._capture.is_running:
                self._capture.start()
        return bool(dropped)

    def _take_first(self, played: PlayedShape) -> None:
        """Take the rows that a shape begins with, unless it was added unseen, while they changed."""
        if played.id in self._unwatched:
            played.begins_unseen = True
        else:
            played.changes.clear()
            played.begins_unseen = self._judge.entries[played.id].starts_after.tx_offset < self._wal_end - 1
        try:
            played.first = self._judge.rows_of(played)
        except PostgresError:
            played.first = {}


def _definition(played: PlayedShape) -> dict[str, Any]:
    fields: dict[str, object] = {}
    if played.kind in SELECTING:
        fields["columns"] = list(LISTED)
    if played.kind in WHERE:
        fields["where"] = WHERE[played.kind]
    if played.kind == "chosen":
        fields["primary_key"] = ["id"]
    if not played.has_snapshot:
        fields["snapshot"] = False
    return shape(played.id, f"public.{played.on}", **fields)
