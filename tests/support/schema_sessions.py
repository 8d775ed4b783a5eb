"""The sessions in which a history's statements run: one for most, and others whose transactions stay open."""

from collections import Counter
from collections.abc import Callable, Sequence

from flushtracker.errors import PostgresError
from flushtracker.postgres.connection import Connection, rows
from tests.support.capture_rig import CaptureRig
from tests.support.schema_history import Step
from tests.support.schema_statements import Change


class HistorySessions:
    """Runs the steps ``run``, ``open``, ``more`` and ``close``; close it when done.

    ``handle_change`` gets each change that has taken effect. A statement that fails is only counted.
    """

    def __init__(self, rig: CaptureRig, counts: Counter[str], handle_change: Callable[[Change], None]) -> None:
        self._rig = rig
        self._counts = counts
        self._handle_change = handle_change
        self.main = self._connect()
        self._open: dict[int, tuple[Connection, list[Change]]] = {}
        """By number, the others and what their transactions have done; nothing if one has failed."""

    @property
    def are_open(self) -> bool:
        """Whether a transaction stays open."""
        return bool(self._open)

    def run(self, step: Step) -> None:
        """Run a step's changes, in one transaction or each statement in its own."""
        if step.how:
            rows(self.main, "BEGIN")
            done = self._in_transaction(self.main, step)
            self._finish(self.main, done, commits=step.how.startswith("commit"))
            return
        for change in step.changes:
            succeeded = [self._execute(self.main, statement) for statement in change.statements]
            if any(succeeded):
                self._handle_change(change)

    def open(self, step: Step) -> None:
        """Begin a transaction in another session."""
        self._end(step.session, commits=False)
        session = self._connect()
        rows(session, "BEGIN")
        self._open[step.session] = session, self._in_transaction(session, step)

    def more(self, step: Step) -> None:
        """Do more in a transaction that is open, unless it has failed."""
        session, done = self._open.get(step.session, (None, []))
        if session is not None and done:
            self._open[step.session] = session, self._in_transaction(session, step, done)

    def close_one(self, step: Step) -> None:
        """End another session's transaction, if there is one."""
        self._end(step.session, commits=step.how == "commit")

    def roll_back(self) -> None:
        """Roll back what is open."""
        for number in list(self._open):
            self._end(number, commits=False)

    def roll_back_locks(self) -> None:
        """Roll back what has locked a table: a shape cannot be added meanwhile."""
        for number, (_, done) in list(self._open.items()):
            if any(change.locks_table for change in done):
                self._end(number, commits=False)

    def close(self) -> None:
        self.main.close()
        for session, _ in self._open.values():
            session.close()

    def _in_transaction(self, session: Connection, step: Step, before: Sequence[Change] = ()) -> list[Change]:
        """Run the step's statements in a transaction, after others; returns the changes that its commit makes."""
        has_savepoints = "savepoints" in step.how
        done = list(before)
        for change in step.changes:
            for statement in change.statements:
                if has_savepoints:
                    rows(session, "SAVEPOINT s")
                if self._execute(session, statement):
                    done.append(change)
                elif has_savepoints:
                    rows(session, "ROLLBACK TO s")
                else:
                    return []
        return done

    def _end(self, number: int, *, commits: bool) -> None:
        if number in self._open:
            session, done = self._open.pop(number)
            self._finish(session, done, commits=commits)
            session.close()

    def _finish(self, session: Connection, done: Sequence[Change], *, commits: bool) -> None:
        rows(session, "COMMIT" if commits else "ROLLBACK")
        for change in dict.fromkeys(done) if commits else ():
            self._handle_change(change)

    def _execute(self, session: Connection, statement: str) -> bool:
        try:
            rows(session, statement)
        except PostgresError:
            self._counts["statements that failed"] += 1
            return False
        self._counts["statements"] += 1
        return True

    def _connect(self) -> Connection:
        session = self._rig.server.connect(application_name="history")
        rows(session, "SET lock_timeout = '100ms'")
        return session
