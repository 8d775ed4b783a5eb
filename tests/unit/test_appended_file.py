"""Files that somebody else has written, as actions that append them: what the table's log says of them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flushtracker.delta.log.claim import LogClaim
from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.table import SEARCHED, create_shape_log
from flushtracker.delta.storage import table_rows
from tests.support.shape_log_rows import arrow, commit, item


@pytest.mark.parametrize("row_group_size", [1, 2, 100])
def test_appended_file_has_the_statistics_of_its_rows(tmp_path: Path, row_group_size: int) -> None:
    """Of all its row groups; readers and merges skip files by them."""
    table = create_shape_log(str(tmp_path / "log"))
    files = LogFiles(table, {})
    rows = [item((1000, 2), "insert", shape_id="ä"), item((900, 7), "insert", shape_id="b"), commit(1000, shape_id="a")]
    pq.write_table(arrow(rows), tmp_path / "log" / "part.parquet", row_group_size=row_group_size)
    found = files.written("part.parquet")
    ours = files.write(arrow(rows), None)
    assert found.rows == 3
    assert json.loads(found.action.stats or "") == json.loads(ours.stats or "")
    assert found.action.size == (tmp_path / "log" / "part.parquet").stat().st_size
    claim = LogClaim(table)
    claim.take()
    claim.append([found], claim.version_of(0))
    table.update_incremental()
    assert sorted(table_rows(table, ["tx_offset"])["tx_offset"].to_pylist()) == [900, 1000, 1000]
    assert [(file.rows, file.first_id, file.last_id, file.first_tx) for file in files.current()] == [(3, "a", "ä", 900)]


def test_column_without_statistics_has_none_in_the_log(tmp_path: Path) -> None:
    """A file of which nothing is known may have every shape."""
    table = create_shape_log(str(tmp_path / "log"))
    part = tmp_path / "log" / "part.parquet"
    pq.write_table(arrow([item((1000, 2), "insert")]), part, write_statistics=["tx_offset"])
    statistics = json.loads(LogFiles(table, {}).written("part.parquet").action.stats or "")
    assert statistics["minValues"] == {"tx_offset": 1000}
    assert set(SEARCHED) - statistics["maxValues"].keys() == {"source", "shape_id", "op_offset"}


def test_file_with_a_large_footer_is_read(tmp_path: Path) -> None:
    """A thousand row groups have a footer of a megabyte."""
    table = create_shape_log(str(tmp_path / "log"))
    rows = pa.concat_tables([arrow([item((1000 + n, 2), "insert")]) for n in range(1000)])
    pq.write_table(rows, tmp_path / "log" / "part.parquet", row_group_size=1)
    assert LogFiles(table, {}).written("part.parquet").rows == 1000
