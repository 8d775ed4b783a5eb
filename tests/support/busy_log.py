"""A shape log that is written, merged, folded and snapshotted again in the background, by the production classes."""

import threading
from types import TracebackType

from deltalake import DeltaTable

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.log.claim import LogClaim
from flushtracker.delta.log.files import LogFiles
from tests.support.shape_log_rows import Row, arrow
from tests.support.snapshot_log import Play


class BusyLog(Play):
    """A :class:`Play` whose steps a thread makes while the context is open; its first snapshot is there by then.

    An error of the thread ends the context with it.
    """

    def __init__(self, log: str, seed: int) -> None:
        super().__init__(log, seed, folds=True)
        table = DeltaTable(log)
        self._files, self._claim, self._batch_id = LogFiles(table, {}), LogClaim(table), 0
        self._claim.take(None)
        self._stop, self._errors = threading.Event(), list[BaseException]()
        while not self.snapshots:
            self.step()
        self.first_version = self.version
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def version(self) -> int:
        return DeltaTable(self.log).version()

    def append(self, rows: list[Row]) -> None:
        written = WrittenFile(self._files.write(arrow(rows), None, is_change=True))
        self._claim.append([written], self._claim.version_of(self._batch_id))
        self._batch_id += 1

    def __enter__(self) -> "BusyLog":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._errors and error is None:
            raise self._errors[0]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.step()
        except BaseException as error:  # noqa: BLE001  raised in the test's thread
            self._errors.append(error)
