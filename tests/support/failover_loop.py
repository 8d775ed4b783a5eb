"""``FailoverLoop``: the whole loop on a primary and a standby that take turns."""

from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Thread
from typing import Final

import psycopg2

from flushtracker.errors import PostgresError
from tests.support.capture_rig import run_in_transaction
from tests.support.failover_pair import FailoverPair
from tests.support.loop_workload import TABLES
from tests.support.whole_loop import WholeLoop

_LARGE_ROWS: Final = 100_000
_LARGE_STEPS: Final = 10


class FailoverLoop(WholeLoop):
    """The loop whose capture connects to whichever server is the primary, which :attr:`server` is."""

    def __init__(self, folder: Path, *, flush: str, write_unit: str) -> None:
        self.pair = FailoverPair(folder / "servers")
        super().__init__(folder, flush=flush, write_unit=write_unit, server=self.pair.primary)

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby in its place."""
        self.pair.fail_over()
        self.server = self.rig.server = self.truth.server = self.pair.primary

    def raise_failure(self) -> None:
        """Raise the error of a process that has ended by itself.

        Capture ends if there is no primary when it starts; a supervisor starts it again, and so does this.
        """
        capture = self._processes.get("capture")
        failure = None if capture is None else capture.failure()
        if failure is not None and "cannot be reached" in str(failure):
            self.kill("capture")
        super().raise_failure()

    def start_large_transaction(self) -> None:
        """Begin a transaction of a hundred thousand rows, which commits if the primary lives long enough."""
        server, count = self.server, _LARGE_ROWS // _LARGE_STEPS
        insert = f"INSERT INTO audit (said) SELECT 'large' FROM generate_series(1, {count})"  # noqa: S608  a number

        def run() -> None:
            with suppress(psycopg2.Error, PostgresError):
                run_in_transaction(server, [insert] * _LARGE_STEPS)

        Thread(target=run, daemon=True).start()

    def _servers(self) -> AbstractContextManager[object]:
        return self.pair

    def _create(self) -> None:
        self.rig.settings["max_batch_size"] = 1000
        self.rig.settings["postgres"]["connection"] = self.pair.options
        # The wait for a capture that was killed with its primary.
        self.rig.settings["kafka"]["retry_timeout"] = "10 seconds"
        self.rig.create_topics()
        self.server.execute("CREATE PUBLICATION shapes FOR ALL TABLES", *TABLES)
        self.pair.create_slot()
        self.truth.create(failover=True)
