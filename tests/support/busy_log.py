"""A shape log that is written, merged, folded and snapshotted again in the background, by the production classes."""

from deltalake import DeltaTable

from flushtracker.delta.data_file import WrittenFile
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.files import LogFiles
from tests.support.background import Background
from tests.support.shape_log_rows import Row, arrow
from tests.support.snapshot_log import Play


class BusyLog(Background, Play):
    """A :class:`Play` whose steps a thread makes while the context is open; its first snapshot is there by then."""

    def __init__(self, log: str, seed: int) -> None:
        Background.__init__(self, self._play)
        Play.__init__(self, log, seed, folds=True)
        table = DeltaTable(log)
        self._files, self._claim, self._batch_id = LogFiles(table, {}), LogClaim(table), 0
        self._claim.take(None)
        while not self.snapshots:
            self.step()
        self.first_version = self.version

    @property
    def version(self) -> int:
        return DeltaTable(self.log).version()

    def append(self, rows: list[Row]) -> None:
        written = WrittenFile(self._files.write(arrow(rows), None, is_change=True))
        self._claim.append([written], self._claim.version_of(self._batch_id))
        self._batch_id += 1

    def _play(self) -> None:
        while not self.stopping.is_set():
            self.step()
