"""The driver of the writers' job with what Spark has collected, and without Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import DecodeError, FlushtrackerError, SinkError
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.shape_log.write.driver import LogTables, WriteDriver
from flushtracker.shape_log.write.group_state import ENTRY, FILE, SHAPE
from flushtracker.shape_log.write.live_write_status import LiveWriteStatus
from flushtracker.spark.workers import ERROR
from flushtracker.wal.log_offset import LogOffset
from tests.support.shape_log_rows import SOURCE, arrow, item


@dataclass
class Batch:
    """What a batch returns, as ``DataFrame.collect`` does."""

    rows: Sequence[Mapping[str, Any]]

    def collect(self) -> list[Mapping[str, Any]]:
        return [*self.rows]


class Notified(list[tuple[str, LogOffset]]):
    def flushed(self, _: str, shape_id: str, offset: LogOffset) -> None:
        self.append((shape_id, offset))

    def flush(self) -> None:
        """Nothing is pending."""


class Play:
    """A driver on a log in ``folder``, and a batch with a file that an executor has written."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        table = create_shape_log(str(self.log))
        self.claim = LogClaim(table)
        self.claim.take()
        files = row_files(table, {})
        tables = LogTables(files, self.claim, LogFiles(table, {}), RegistryTable(f"{self.log}_shapes", create=True))
        self.notified = Notified()
        self.driver = WriteDriver(tables, cast("Any", self.notified), 0, LiveWriteStatus())
        self.file: WrittenFile = next(files.write([arrow([item((1000, 0), "insert")])]))

    def process(self, *rows: Mapping[str, Any]) -> None:
        none: dict[str, Any] = dict.fromkeys(("source", "shape_id", "value", "reason", "report", "packed"))
        shape = {"kind": SHAPE, "source": SOURCE, "shape_id": "users", "tx_offset": 1000, "op_offset": 0, "rows": 1}
        every: list[Mapping[str, Any]] = [
            {"kind": FILE, "value": str(self.file)},
            {**shape, "value": None, "commit_timestamp": None},
            *rows,
        ]
        self.driver.process(cast("Any", Batch([{**none, **row} for row in every])), 0)

    def files(self) -> list[str]:
        return [path.name for path in self.log.iterdir() if path.is_file()]


_MALFORMED = {"kind": ERROR, "reason": "an event", "report": DecodeError.__name__}
_TWO_ROWS = {"kind": SHAPE, "source": SOURCE, "shape_id": "b", "tx_offset": 1, "op_offset": 0, "rows": 1}


@pytest.mark.parametrize(
    ("row", "error"),
    [(_MALFORMED, DecodeError), ({"kind": ENTRY, "value": "no entry"}, DecodeError), (_TWO_ROWS, SinkError)],
)
def test_a_batch_that_fails_before_its_append_leaves_no_file(
    tmp_path: Path, row: Mapping[str, Any], error: type[FlushtrackerError]
) -> None:
    """Otherwise each restart would add the files of the same batch, and upkeep deletes none while nothing is merged."""
    play = Play(tmp_path)
    with pytest.raises(error):
        play.process(row)
    assert (play.files(), play.notified) == ([], [])


def test_a_file_stays_when_its_append_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit may have succeeded."""
    play = Play(tmp_path)

    def lost(*_: object) -> None:
        raise SinkError("no response")

    monkeypatch.setattr(play.claim, "append", lost)
    with pytest.raises(SinkError, match="no response"):
        play.process()
    assert play.files() == [play.file.action.path]
    assert play.notified == []


def test_a_batch_is_notified_once_its_file_is_part_of_the_log(tmp_path: Path) -> None:
    """And its file stays."""
    play = Play(tmp_path)
    play.process()
    assert play.files() == [play.file.action.path]
    assert play.notified == [("users", LogOffset(1000, 0))]
