"""Merging appended files of any size and shape: the same rows, sorted, within a memory that the files do not change."""

import json
import random
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from flushtracker.delta import data_file
from flushtracker.delta.commits import Commits
from flushtracker.delta.data_file import _statistics
from flushtracker.delta.storage import table_rows
from flushtracker.shape_log.merge_plan import MIB, MergeSettings
from flushtracker.shape_log.table.columns import SCHEMA, SEARCHED
from flushtracker.shape_log.table.files import LogFile, LogFiles, by_run
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.runs import Runs, sort
from tests.support.seeds import in_turn, seeds
from tests.support.shape_log_rows import SOURCE, Row, arrow, item

_BLOCK: Final = 2000
_SORTED: Final = 8 * _BLOCK


def add(table: DeltaTable, tables: Iterable[tuple[pa.Table, int]]) -> None:
    """Append files with row groups of so many rows, as any program may write them, in one commit."""
    actions = list[AddAction]()
    for rows, group in tables:
        name = f"part-{uuid.uuid4().hex}.parquet"
        path = Path(table.table_uri.removeprefix("file://"), name)
        pq.write_table(rows, path, row_group_size=group)
        statistics = json.dumps(_statistics(pq.read_metadata(path), SEARCHED))
        actions.append(AddAction(name, path.stat().st_size, {}, 0, data_change=True, stats=statistics))
    Commits().commit(table, actions)


def random_rows(draw: random.Random, tx: int) -> list[Row]:
    """Rows of a few shapes; most are small, some alone exceed a block, or the memory of a merge."""
    return [
        item(
            (tx + draw.randrange(100), 2 * n),
            "insert",
            f"k{n}",
            {"text": "x" * draw.choices([1, 10, 100, 3 * _BLOCK, 2 * _SORTED], [30, 30, 30, 2, 1])[0]},
            shape_id=f"s{draw.randrange(6)}",
            source=draw.choice([SOURCE, "b/1/s"]),
        )
        for n in range(draw.choice([0, 1, 5, 30, 100]))
    ]


class WatchedFiles(LogFiles):
    """Files that fail a test if they are read or written in blocks that are too large."""

    def read_blocks(self, paths: Iterable[str]) -> Iterator[pa.Table]:
        for block in super().read_blocks(paths):
            assert len(block) == 1 or block.nbytes <= _BLOCK
            yield block

    def write_blocks(self, *arguments: object, **named: object) -> AddAction:
        action = super().write_blocks(*arguments, **named)  # type: ignore[arg-type]
        footer = pq.read_metadata(Path(self._table.table_uri.removeprefix("file://"), action.path))
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        assert groups
        assert all(group.num_rows == 1 or group.num_rows * 60 <= _BLOCK for group in groups)
        return action


def every_row(table: DeltaTable) -> Counter[str]:
    table.update_incremental()
    return Counter(map(repr, table_rows(table, SCHEMA.names).to_pylist()))


def require_sorted(files: LogFiles, run: list[LogFile]) -> None:
    rows = pa.concat_tables(files.read_blocks(file.path for file in run))
    assert rows == sort(rows)


@pytest.mark.parametrize("seed", seeds(1, further=5))
def test_merges_keep_every_row_and_sort_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever sizes files and row groups have; in the end no file waits, and no memory was exceeded."""
    monkeypatch.setattr(data_file, "BLOCK_BYTES", _BLOCK)
    draw = random.Random(seed)  # noqa: S311  reproducible rows
    monkeypatch.setattr(data_file, "_WHOLE_BYTES", draw.choice([0, MIB]))
    table = create_shape_log(str(tmp_path / "log"))
    settings = MergeSettings(merge_files=1, sorted_bytes=_SORTED, least_file_bytes=1, files_per_run=draw.choice([1, 9]))
    files = WatchedFiles(table, {})
    runs = Runs(table, files, settings)
    for number in range(3):
        appended = [arrow(random_rows(draw, 1000 * number)) for _ in range(draw.randint(1, 6))]
        add(table, [(rows, draw.choice([1, 7, 1000])) for rows in appended])
        before = every_row(table)
        for _ in range(100):
            if not runs.merge():
                break
            for run in by_run(files.current()).values():
                require_sorted(files, run)
        assert every_row(table) == before
        assert all(file.run is not None for file in files.current())


def texts() -> Iterator[tuple[pa.Table, int]]:
    """A file of a few KiB whose rows are large: a Parquet file has each repeated text once."""
    text = pa.DictionaryArray.from_arrays(pa.array([n % 4 for n in range(200)], pa.int32()), [c * MIB for c in "abcd"])
    yield with_values(0, text), 1 << 30


def row_group() -> Iterator[tuple[pa.Table, int]]:
    """One row group of many rows."""
    yield with_values(0, pa.array([f"{n * 7919:02000}" for n in range(60_000)])), 1 << 30


def many_files() -> Iterator[tuple[pa.Table, int]]:
    """Files that are small, but not together."""
    values = pa.array([f"{n * 7919:020000}" for n in range(50)])
    for number in range(120):
        yield with_values(50 * number, values), 1 << 30


_TRAPS: Final = {each.__name__: each for each in (texts, row_group, many_files)}


def with_values(first: int, values: pa.Array) -> pa.Table:
    count = len(values)
    columns = {
        "source": pa.array([SOURCE] * count),
        "shape_id": pa.array([f"s{(first + n) * 7919 % 97}" for n in range(count)]),
        "tx_offset": pa.array(range(first, first + count), pa.int64()),
        "op_offset": pa.array([0] * count, pa.int64()),
        "operation": pa.array(["insert"] * count),
        "value": values,
    }
    return pa.table({name: columns.get(name, pa.nulls(count, SCHEMA.field(name).type)) for name in SCHEMA.names})


MERGE_AND_PRINT_MEMORY: Final = """
import resource, sys
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.runs import Runs
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.merge_plan import MIB, MergeSettings

table = create_shape_log(sys.argv[1])
files = LogFiles(table, {})
runs = Runs(table, files, MergeSettings(merge_files=1, sorted_bytes=int(sys.argv[2])))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
while runs.merge():
    pass
print(sum(file.rows for file in files.current()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("trap", in_turn([*_TRAPS]))
def test_memory_of_a_merge_is_bounded_whatever_the_files_are(tmp_path: Path, trap: str) -> None:
    """At least 120 MB of rows, more than may be in memory, in files of which each kind once took all of it."""
    table, tables = create_shape_log(str(tmp_path / "log")), list(_TRAPS[trap]())
    add(table, tables)
    rows, limit = sum(len(each) for each, _ in tables), 16 * MIB
    command = [sys.executable, "-c", MERGE_AND_PRINT_MEMORY, str(tmp_path / "log"), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    merged_rows, peak_kib = map(int, done.stdout.split())
    assert merged_rows == rows
    assert peak_kib << 10 <= 3 * limit + 128 * MIB
