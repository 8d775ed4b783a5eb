"""Plays a history of schema changes on a real server and broker, with capture, and judges its shapes meanwhile.

The rule at each quiet moment: folding a shape's items, on the rows that its table had when it was added, equals its
query; or the shape has ended, with a reason in its registry entry, a ``removed`` notification and a line in the log.
And no shape ends without a change that it need not survive.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from flushtracker.postgres.connection import rows
from flushtracker.wal.lsn import parse_lsn
from tests.support.capture_rig import CaptureRig
from tests.support.controlled_capture import ControlledCapture
from tests.support.played_file import NotAddedError, PlayedFile
from tests.support.schema_history import History, Step
from tests.support.schema_judge import PlayedShape, SchemaJudge
from tests.support.schema_sessions import HistorySessions
from tests.support.schema_statements import MANAGED, NONE, Change, creation

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
        self._number = 0
        _reset(rig)
        rig.create_topics()
        rig.server.execute(history.publication, "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')")
        self._sessions = HistorySessions(rig, self.counts, self._note)
        self._session = self._sessions.main
        self._capture = ControlledCapture(rig, is_process=history.is_process)
        self._judge = SchemaJudge(rig)
        is_managed = history.publication == MANAGED
        self._file = PlayedFile(
            rig, self._capture, self._judge, self._sessions, self._require_running, is_managed=is_managed
        )

    def run(self) -> Counter[str]:
        """Play all steps; raises ``RuleBrokenError``."""
        for number, layout in enumerate(self._history.layouts):
            for statement in creation(f"t{number}", layout, self._history.publication):
                rows(self._session, statement)
        # Only the shapes of a new source get what was committed before they were added.
        self._file.renew()
        self._start()
        actions: dict[str, Callable[[Step], None]] = {
            "run": self._sessions.run,
            "open": self._sessions.open,
            "more": self._sessions.more,
            "close": self._close_session,
            "renew": lambda _: self._file.renew(),
            "snapshot": lambda _: self._take_snapshots(),
            "remove": lambda step: self._file.remove(step.how),
            "start": lambda _: self._start(),
            "stop": lambda _: self._capture.stop(),
            "kill": self._kill,
            "terminate": lambda _: self._capture.disconnect(self._session),
            "acknowledge": lambda _: self._file.acknowledge(),
            "check": lambda _: self._check(),
        }
        self.counts["histories"] += 1
        for number, step in enumerate(self._history.steps):
            self._number = number
            self.counts["steps"] += 1
            self.counts[f"step: {step.action}"] += 1
            try:
                actions[step.action](step)
            except NotAddedError as error:
                raise self._broken("not added", str(error)) from error
        for played in self._file.added:
            self._count(played)
        self.counts += self._file.counts
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
        for played in self._file.shapes.values():
            if change.table in {"", played.table}:
                played.changes.append(change)
                self._judge.note(played, changes_schema=change.changes_schema)

    def _close_session(self, step: Step) -> None:
        self._file.note_wal_end()
        self._sessions.close_one(step)
        if self._capture.is_running:
            self._file.wait_until_added()

    def _take_snapshots(self) -> None:
        """Take each snapshot that can be taken now."""
        self._judge.read()
        for played in self._file.shapes.values():
            if played.has_snapshot and played.id in self._judge.entries:
                self._judge.take_snapshot(played)

    def _start(self) -> None:
        self._require_running(may_be_stopped=True)
        self._sessions.roll_back_locks()
        self._capture.start()
        self._file.wait_until_added()

    def _kill(self, step: Step) -> None:
        point, passes = step.how.rsplit("/", 1)
        self._capture.kill(point, int(passes))

    def _check(self) -> None:
        self._file.note_wal_end()
        self._sessions.roll_back()
        if self._capture.is_running:
            self._file.wait_until_added()
        else:
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
        for played in self._file.added:
            self._count_changes(played)
            if self._file.is_live(played):
                self._judge.note(played, changes_schema=False)

    def _count_changes(self, played: PlayedShape) -> None:
        """Count the changes since the last check that the shape has survived, or that it may have ended by."""
        entry = self._judge.entries[played.id]
        for change in dict.fromkeys(played.changes[played.counted_changes :]):
            if not change.locks_table or played.is_removed:
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
        found = {played.id: self._judge.problem(played, log) for played in self._file.added}
        return {shape_id: problem for shape_id, problem in found.items() if problem is not None}

    def _require_running(self, *, may_be_stopped: bool = False) -> None:
        """Raise if capture has failed by itself; start it again if it was killed, or what it was given is unfit."""
        failure = self._capture.failure()
        if failure is not None and not self._file.drop_refused(len(self._capture.log())):
            raise self._broken("failed", failure)
        if not may_be_stopped and not self._capture.is_running:
            self._publish()
            self._capture.start()

    def _publish(self) -> None:
        """Create the publication as an operator does who reads why capture has failed, unless there is one."""
        if not rows(self._session, "SELECT FROM pg_publication WHERE pubname = 'shapes'"):
            statement = self._history.publication
            self._sessions.run(Step("run", (Change((statement,), NONE, template=statement),)))

    def _broken(self, kind: str, what: str) -> RuleBrokenError:
        return RuleBrokenError(self._number, kind, what)

    def _count(self, played: PlayedShape) -> None:
        self.counts["shapes"] += 1
        if self._file.is_live(played):
            self.counts["shapes live at the end"] += 1
        if played.saw_rows_after_change:
            self.counts["shapes with rows after a schema change"] += 1
        elif played.must_live:
            self.counts["shapes that had to live"] += 1


def _reset(rig: CaptureRig) -> None:
    publications = rig.server.execute("SELECT pubname FROM pg_publication")
    rig.server.execute(*_RESET, *(f"DROP PUBLICATION {name}" for (name,) in publications), "SELECT 1")
