"""A shape log after a month of appends: what reading one shape opens, what merging costs, and which files are left."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from flushtracker.delta.log import upkeep as upkeep_module
from flushtracker.delta.log.files import LogFile, LogFiles
from flushtracker.delta.log.reader import read_shape, read_shape_log
from flushtracker.delta.log.table import create_shape_log
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.shape_log.merge_plan import MergeSettings
from tests.bench.measure import Table
from tests.support.shape_log_rows import append_transactions

_DAYS: Final = 30
_NOW: Final = datetime(2026, 1, 2, tzinfo=timezone.utc)
_EVERY: Final = 50


def tables(*, quick: bool) -> Iterator[Table]:
    """Each day has a few appends, of which each has a transaction of every shape; the sizes are scaled."""
    shapes, appends, rows_each = (100, 2, 1) if quick else (10_000, 8, 2)
    shape_ids = [f"customers-of-the-region-{number:05}" for number in range(shapes)]
    # As many merges as a day of real appends and a real size have, and runs that are sealed within the month.
    settings = MergeSettings(merge_files=8, sealed_bytes=(1 << 20) * (1 if quick else 32))
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "log")
        create_shape_log(log)
        # Old files go at once, and a vacuum is due about every third day.
        DeltaTable(log).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
        upkeep_module.VACUUM_EVERY, kept = 50, upkeep_module.VACUUM_EVERY  # type: ignore[misc]
        try:
            yield _month(log, shape_ids, appends, rows_each, settings)
        finally:
            upkeep_module.VACUUM_EVERY = kept  # type: ignore[misc]


def _month(log: str, shape_ids: list[str], appends: int, rows_each: int, settings: MergeSettings) -> Table:
    appended = rewritten = 0
    spent_s = 0.0
    lines = list[list[str]]()
    for number in range(_DAYS * appends):
        append_transactions(log, shape_ids, number, rows_each=rows_each)
        # deltalake writes one file for each append.
        appended += max(_files(log), key=lambda file: file.modified_ms).bytes
        upkeep = ShapeLogUpkeep(log, settings=settings)
        started = time.perf_counter()
        rewritten += upkeep.run(_NOW).rewritten_bytes
        spent_s += time.perf_counter() - started
        day, rest = divmod(number + 1, appends)
        if rest == 0 and day in {1, 3, 10, 20, _DAYS}:
            lines.append([f"day {day}", *_line(log, shape_ids), f"{spent_s:.1f}"])
    title = (
        f"shape log of {len(shape_ids):,} shapes, {appends} appends a day of {rows_each} items for each of them; "
        f"{appended / 1e6:,.0f} MB appended, {rewritten / 1e6:,.0f} MB rewritten"
    )
    header = ["after", "MB", "rows", "files", "on disk", "log files", "opens", "at most", "of runs", "ms", "merging s"]
    return Table(title, header, lines)


def _line(log: str, shape_ids: list[str]) -> list[str]:
    files = _files(log)
    total, runs = sum(file.bytes for file in files), [file for file in files if file.run is not None]
    opened = [sum(file.bytes for file in files if file.may_have([name])) / total for name in shape_ids[::_EVERY]]
    merged = [sum(file.bytes for file in runs if file.may_have([name])) / total for name in shape_ids[::_EVERY]]
    started = time.perf_counter()
    names = shape_ids[:: max(1, len(shape_ids) // 5)]
    for name in names:
        read_shape(log, name)
        read_shape_log(log, name)
    return [
        f"{total / 1e6:.1f}",
        f"{sum(file.rows for file in files):,}",
        f"{len(files):,}",
        f"{len(list(Path(log).glob('*.parquet'))):,}",
        f"{len(list((Path(log) / '_delta_log').iterdir())):,}",
        f"{statistics.median(opened):.2%}",
        f"{max(opened):.2%}",
        f"{max(merged):.2%}",
        f"{(time.perf_counter() - started) / len(names) / 2 * 1e3:.0f}",
    ]


def _files(log: str) -> list[LogFile]:
    return LogFiles(DeltaTable(log), {}).current()
