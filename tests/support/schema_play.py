"""Plays a history of schema changes on a real server and broker, with capture, and judges its shapes meanwhile.

The rule at each quiet moment: folding a shape's items, on the rows that its table had when it was added, equals its
query; or the shape has ended, with a reason in its registry entry, a ``removed`` notification and a line in the log.
And no shape ends without a change that it need not survive.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Final

from flushtracker.errors import PostgresError
from flushtracker.postgres.connection import rows
from flushtracker.wal.lsn import parse_lsn
from tests.support.capture_rig import CaptureRig, shape
from tests.support.controlled_capture import ControlledCapture
from tests.support.schema_history import TABLES, History, Step
from tests.support.schema_judge import PlayedShape, SchemaJudge
from tests.support.schema_sessions import HistorySessions
from tests.support.schema_statements import LISTED, PART, SELECTING, WHERE, Change, creation, played_kinds

_PAUSE_S: Final = 0.01
_PROGRESS_S: Final = 40.0
_RESET: Final = (
    """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()
    """,
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
    "DROP SCHEMA IF EXISTS public, elsewhere, green CASCADE",
    "CREATE SCHEMA public",
    "CREATE SCHEMA elsewhere",
    "CREATE COLLATION elsewhere.caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
)
# The tables that shapes are tried on: those without any key only if all that they have is sent.
_FIT: Final = """
SELECT c.relname, bool_and(l.relreplident = 'f')
FROM pg_class c
JOIN LATERAL (
  SELECT c.relreplident WHERE c.relkind = 'r'
  UNION ALL SELECT p.relreplident FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid WHERE t.isleaf
) l ON true
WHERE c.relnamespace = 'public'::regnamespace AND c.relname = ANY(%s) AND c.relkind IN ('r', 'p')
GROUP BY c.oid, c.relname
HAVING bool_and(l.relreplident = 'f')
  OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident))
"""


class RuleBrokenError(AssertionError):
    """A shape is wrong, capture has failed or is stuck; ``step`` is the number of the step that shows it.

    ``kind``: the first words of what is wrong, the same for what probably has the same cause.
    """

    def __init__(self, step: int, kind: str, what: str) -> None:
        super().__init__(what)
        self.step = step
        self.kind = kind


class SchemaPlay:
    """Plays one history; close it when done.

    ``deadline_s``: how long it may take until the rule holds, once everything is published.
    """

    def __init__(self, rig: CaptureRig, history: History, deadline_s: float) -> None:
        self._rig = rig
        self._history = history
        self._deadline_s = deadline_s
        self.counts: Counter[str] = Counter()
        """What the history has shown, by what is counted."""
        self._shapes: dict[str, PlayedShape] = {}
        self._number = 0
        self._defined = 0
        _reset(rig)
        rig.create_topics()
        rig.server.execute(history.publication, "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')")
        self._sessions = HistorySessions(rig, self.counts, self._note)
        self._session = self._sessions.main
        self._capture = ControlledCapture(rig, is_process=history.is_process)
        self._judge = SchemaJudge(rig)

    def run(self) -> Counter[str]:
        """Play all steps; raises ``RuleBrokenError``."""
        for number, layout in enumerate(self._history.layouts):
            for statement in creation(f"t{number}", layout, self._history.publication):
                rows(self._session, statement)
        # Only the shapes of a new source get what was committed before they were added.
        self._renew()
        self._start()
        actions: dict[str, Callable[[Step], None]] = {
            "run": self._sessions.run,
            "open": self._sessions.open,
            "more": self._sessions.more,
            "close": self._sessions.close_one,
            "renew": lambda _: self._renew(),
            "snapshot": lambda _: self._take_snapshots(),
            "remove": self._remove,
            "start": lambda _: self._start(),
            "stop": lambda _: self._capture.stop(),
            "kill": self._kill,
            "terminate": lambda _: self._capture.disconnect(self._session),
            "acknowledge": lambda _: self._acknowledge(),
            "check": lambda _: self._check(),
        }
        self.counts["histories"] += 1
        for number, step in enumerate(self._history.steps):
            self._number = number
            self.counts["steps"] += 1
            self.counts[f"step: {step.action}"] += 1
            actions[step.action](step)
        for played in self._shapes.values():
            self._count(played)
        return self.counts

    def close(self) -> None:
        self._capture.close()
        self._judge.close()
        self._sessions.close()
        self._rig.close()

    def _note(self, change: Change) -> None:
        """Note a change that took effect, with the shapes that it concerns."""
        if change.changes_schema:
            self.counts["schema changes"] += 1
        for played in self._shapes.values():
            if change.table in {"", played.table}:
                played.changes.append(change)
                self._judge.note(played, changes_schema=change.changes_schema)

    def _renew(self) -> None:
        """Define a shape of each kind on each table that has none, and wait until they are added if capture runs."""
        self._sessions.roll_back_locks()
        self._judge.read()
        live = {(each.table, each.kind) for each in self._shapes.values() if self._is_live(each)}
        tables = [f"t{number}" for number in range(TABLES)]
        parts = [f"{table}{PART.get(kind, '')}" for table in tables for kind in played_kinds()]
        fit = dict(rows(self._session, _FIT, (parts,)))
        for table, kind in product(tables, played_kinds()):
            is_full = fit.get(f"{table}{PART.get(kind, '')}")
            if (table, kind) not in live and is_full is not None and (kind != "text" or is_full):
                shape_id = f"{table}-{kind}-{self._defined}"
                self._defined += 1
                self._shapes[shape_id] = PlayedShape(shape_id, table, kind, self._defined % 3 != 0)
        self._define()
        if self._capture.is_running:
            self._wait_until_added()

    def _is_live(self, played: PlayedShape) -> bool:
        entry = self._judge.entries.get(played.id)
        return not played.is_removed and (entry is None or entry.removed_at is None)

    def _define(self) -> None:
        live = [each for each in self._shapes.values() if self._is_live(each)]
        self._rig.define(*(_definition(each) for each in live), allow_removing=1000)

    def _wait_until_added(self) -> None:
        """Until each shape is registered, or refused; the rows of its table are those that it starts with."""
        log_from, deadline = 0, time.monotonic() + _PROGRESS_S
        while pending := [each for each in self._shapes.values() if each.first is None]:
            self._judge.read()
            for played in pending:
                if played.id in self._judge.entries:
                    self._take_first(played)
            refused = self._refused(pending, log_from)
            if refused:
                log_from, deadline = len(self._capture.log()), time.monotonic() + _PROGRESS_S
                for shape_id in refused:
                    del self._shapes[shape_id]
                    self.counts["shapes refused"] += 1
                self._define()
                if not self._capture.is_running:
                    self._capture.start()
            self._require_running()
            if time.monotonic() > deadline:
                ids = ", ".join(each.id for each in pending)
                raise self._broken("not added", f"shapes are not added: {ids}; {self._capture.log()[-500:]}")
            time.sleep(_PAUSE_S)

    def _refused(self, pending: Sequence[PlayedShape], log_from: int) -> list[str]:
        """Those of the shapes that are not added yet that were refused; all of a table's if it is the reason."""
        refused = self._capture.refused(log_from)
        tables = {shape.on for shape in pending if refused.get(shape.id, "").startswith(f"table public.{shape.on} ")}
        return [shape.id for shape in pending if shape.id in refused or shape.on in tables]

    def _take_first(self, played: PlayedShape) -> None:
        played.changes.clear()
        try:
            played.first = self._judge.rows_of(played)
        except PostgresError:
            played.first = {}

    def _take_snapshots(self) -> None:
        """Take each snapshot that can be taken now."""
        self._judge.read()
        for played in self._shapes.values():
            if played.has_snapshot and played.id in self._judge.entries:
                self._judge.take_snapshot(played)

    def _remove(self, step: Step) -> None:
        self._judge.read()
        for played in self._shapes.values():
            if played.table == step.how and self._is_live(played):
                played.is_removed = True
        self._define()

    def _start(self) -> None:
        self._require_running(may_be_stopped=True)
        self._sessions.roll_back_locks()
        self._capture.start()
        if any(each.first is None for each in self._shapes.values()):
            self._wait_until_added()

    def _kill(self, step: Step) -> None:
        point, passes = step.how.rsplit("/", 1)
        self._capture.kill(point, int(passes))

    def _acknowledge(self) -> None:
        if self._capture.has_source:
            self._rig.acknowledge(self._judge.published_lsn)

    def _check(self) -> None:
        self._sessions.roll_back()
        if not self._capture.is_running:
            self._start()
        ((text,),) = rows(self._session, "SELECT pg_current_wal_insert_lsn()::text")
        self._wait_until_published(parse_lsn(text))
        self._take_snapshots()
        deadline = time.monotonic() + self._deadline_s
        while problems := self._problems():
            if time.monotonic() > deadline:
                what = [f"shape {shape_id} {problem}" for shape_id, problem in problems.items()]
                raise self._broken(next(iter(problems.values()))[:12], "\n".join(what))
            time.sleep(_PAUSE_S)
            self._require_running()
            self._take_snapshots()
        for played in self._shapes.values():
            self._count_changes(played)
            if self._is_live(played):
                self._judge.note(played, changes_schema=False)

    def _count_changes(self, played: PlayedShape) -> None:
        """Count the changes since the last check that the shape has survived, or that it may have ended by."""
        entry = self._judge.entries[played.id]
        for change in dict.fromkeys(played.changes[played.counted_changes :]):
            if not change.changes_schema or played.is_removed:
                continue
            self.counts[f"{'ended by' if entry.removed_at else 'survived'}: {change.template}"] += 1
        # An ended shape has ended once.
        played.counted_changes = len(played.changes) if entry.removed_at is None else sys.maxsize

    def _wait_until_published(self, lsn: int) -> None:
        deadline = time.monotonic() + _PROGRESS_S
        self._judge.read()
        while self._judge.published_lsn < lsn - 1:
            if time.monotonic() > deadline:
                what = f"capture is stuck: {self._judge.published_lsn} published of {lsn}"
                raise self._broken("stuck", f"{what}; {self._capture.log()[-500:]}")
            time.sleep(_PAUSE_S)
            self._require_running()
            self._judge.read()

    def _problems(self) -> dict[str, str]:
        log = self._capture.log()
        found = {played.id: self._judge.problem(played, log) for played in self._shapes.values()}
        return {shape_id: problem for shape_id, problem in found.items() if problem is not None}

    def _require_running(self, *, may_be_stopped: bool = False) -> None:
        """Raise if capture has failed by itself; start it again if it was killed or its publication was unfit."""
        if (failure := self._capture.failure()) is not None:
            pending = {each.id for each in self._shapes.values() if each.first is None}
            if not self._capture.refused(len(self._capture.log())).keys() & pending:
                raise self._broken("failed", failure)
        if not may_be_stopped and not self._capture.is_running:
            self._capture.start()

    def _broken(self, kind: str, what: str) -> RuleBrokenError:
        return RuleBrokenError(self._number, kind, what)

    def _count(self, played: PlayedShape) -> None:
        self.counts["shapes"] += 1
        if self._is_live(played):
            self.counts["shapes live at the end"] += 1
        if played.saw_rows_after_change:
            self.counts["shapes with rows after a schema change"] += 1
        elif played.must_live:
            self.counts["shapes that had to live"] += 1


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


def _reset(rig: CaptureRig) -> None:
    publications = rig.server.execute("SELECT pubname FROM pg_publication")
    rig.server.execute(*_RESET, *(f"DROP PUBLICATION {name}" for (name,) in publications), "SELECT 1")
