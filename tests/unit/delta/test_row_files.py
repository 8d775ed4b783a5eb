"""The files of rows that are appended, as any process writes them, and what the table's log says of them."""

import errno
import json
import os
import pickle
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flushtracker.config.secret_options import SecretOptions
from flushtracker.delta import data_file, row_files
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.row_files import RowFiles
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.columns import SCHEMA, SEARCHED
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.log_table import row_files as row_files_of
from tests.support.shape_log_rows import arrow, commit, item


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_appended_file_has_the_statistics_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    """For all its row groups; readers and merges skip files by them."""
    monkeypatch.setattr(data_file, "BLOCK_BYTES", block_bytes)
    table = create_shape_log(str(tmp_path / "log"))
    rows = [item((1000, 2), "insert", shape_id="ä"), item((900, 7), "insert", shape_id="b"), commit(1000, shape_id="a")]
    (written,) = row_files_of(table, {}).write([arrow(rows)])
    path = tmp_path / "log" / written.action.path
    assert (written.rows, written.action.size) == (3, path.stat().st_size)
    assert json.loads(written.action.stats)["minValues"] == {
        "source": "7301/1/shapes",
        "shape_id": "a",
        "tx_offset": 900,
        "op_offset": 2,
    }
    assert pq.read_metadata(path).num_row_groups == (3 if block_bytes < 1000 else 1)
    claim = LogClaim(table)
    claim.take()
    claim.append([written], claim.version_of(0))
    table.update_incremental()
    assert sorted(table_rows(table, ["tx_offset"])["tx_offset"].to_pylist()) == [900, 1000, 1000]
    found = LogFiles(table, {}).current()
    assert [(file.rows, file.first_id, file.last_id, file.first_tx) for file in found] == [(3, "a", "ä", 900)]


def test_column_without_statistics_has_none_in_the_log(tmp_path: Path) -> None:
    """A file of which nothing is known may have every shape. Parquet has no ranges of long texts."""
    table = create_shape_log(str(tmp_path / "log"))
    (written,) = row_files_of(table, {}).write([arrow([item((1000, 2), "insert", shape_id="x" * 5000)])])
    statistics = json.loads(written.action.stats)
    assert set(SEARCHED) - statistics["minValues"].keys() == {"shape_id"}
    assert set(SEARCHED) - statistics["maxValues"].keys() == {"shape_id"}


def test_many_rows_are_divided_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the rows of whole blocks, in their order, and is of the table's schema."""
    monkeypatch.setattr(row_files, "ROWS_PER_FILE", 10)
    table = create_shape_log(str(tmp_path / "log"))
    blocks = [arrow([item((1000 + n, 2 * k), "insert") for k in range(n % 5)]) for n in range(15)]
    written = list(row_files_of(table, {}).write(blocks))
    assert [file.rows for file in written] == [10, 10, 10]
    found = [pq.read_table(tmp_path / "log" / file.action.path) for file in written]
    assert [rows.schema.remove_metadata() for rows in found] == [SCHEMA] * 3
    assert pa.concat_tables(found).to_pylist() == pa.concat_tables(blocks).to_pylist()


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    """A commit of an empty file would cost every reader a request."""
    files = row_files_of(create_shape_log(str(tmp_path / "log")), {})
    assert list(files.write([])) == list(files.write([SCHEMA.empty_table()])) == []
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["_delta_log"]


def test_files_that_the_driver_does_not_see_are_refused(tmp_path: Path) -> None:
    """As if executors saw another storage, or somebody cleaned the folder up; the shapes would be notified."""
    files = row_files_of(create_shape_log(str(tmp_path / "log")), {})
    first, second = (next(files.write([arrow([item((n, 0), "insert")])])) for n in (1000, 1001))
    files.require([first, second])
    (tmp_path / "log" / second.action.path).write_bytes(b"cut")
    with pytest.raises(SinkError, match=rf"shape log .*: 1 of 2 files .* are not there, such as {second.action.path};"):
        files.require([first, second])
    (tmp_path / "log" / second.action.path).unlink()
    with pytest.raises(SinkError, match="1 of 2 files"):
        files.require([first, second])


def test_storage_that_fails_is_named(tmp_path: Path) -> None:
    """Where, and what the storage says; an error of the rows themselves is not the storage's."""
    files = row_files_of(create_shape_log(str(tmp_path / "log")), {})
    (tmp_path / "log" / "_delta_log").rename(tmp_path / "_delta_log")
    (tmp_path / "log").rmdir()
    (tmp_path / "log").write_text("in the way")
    with pytest.raises(SinkError, match=rf"shape log {re.escape(files.uri)} cannot be written: .*"):
        list(files.write([arrow([item((1000, 0), "insert")])]))


def test_content_that_cannot_be_synced_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the machine that wrote it: on NFS, a close loses a part without a word, and another machine has none of it."""
    files = row_files_of(create_shape_log(str(tmp_path / "log")), {})

    def lost(path: Path) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))

    monkeypatch.setattr(row_files, "sync", lost)
    with pytest.raises(SinkError, match=rf"shape log {re.escape(files.uri)} cannot be written: .*quota"):
        list(files.write([arrow([item((1000, 0), "insert")])]))


def test_discarded_files_are_gone_and_none_is_an_error(tmp_path: Path) -> None:
    """Also if some were deleted meanwhile, or the storage fails."""
    files = row_files_of(create_shape_log(str(tmp_path / "log")), {})
    first, second = (next(files.write([arrow([item((n, 0), "insert")])])) for n in (1000, 1001))
    (tmp_path / "log" / first.action.path).unlink()
    files.discard([first, second])
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["_delta_log"]
    (tmp_path / "log" / "_delta_log").rename(tmp_path / "_delta_log")
    (tmp_path / "log").rmdir()
    files.discard([second])


def test_options_reach_executors_and_no_message(tmp_path: Path) -> None:
    """They may have keys of the storage."""
    options = SecretOptions({"AWS_SECRET_ACCESS_KEY": "hunter2hunter2"})
    files = row_files_of(create_shape_log(str(tmp_path / "log")), options)
    assert "hunter2" not in repr(files)
    sent = pickle.loads(pickle.dumps(files))  # noqa: S301  as Spark does
    assert isinstance(sent, RowFiles)
    assert dict(sent.options) == dict(options)


def test_written_file_travels_as_text(tmp_path: Path) -> None:
    """What the driver commits is what the executor wrote, statistics included."""
    files = row_files_of(create_shape_log(str(tmp_path / "log")), {})
    (written,) = files.write([arrow([item((1000, 2), "insert", shape_id='ä"\n')])])
    assert WrittenFile.parse(str(written)) == written
