"""``make soak``: a shape log of 50 GB, and a folder of a million files, by their metadata.

The table's own log names the files of sealed runs, 2 GiB of 128 files each, of 100,000 shapes in the order of their
ids; none of these files exists, so whoever opened one would fail. Beside them are the real files of one shape. Then
these must work, and take no more than the limits say: to open the table, to read that shape, a follower's poll, an
append with the commit of a writer, and upkeep with all of its merges.

Then the folder gets a million files that no version of the table names, as killed processes leave them: upkeep's vacuum
lists all, and deletes those that are past the retention.

``python -m tests.integration.soak_large_log [--gigabytes 50] [--files 1000000]`` prints a line for each.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, TypeVar

from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.log.claim import LogClaim
from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.reader import ShapeLogReader
from flushtracker.delta.log.table import create_shape_log, row_files, shape_log_folder
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.shape_log.merge_plan import MergeSettings
from tests.support.shape_log_rows import SOURCE, append, arrow, commit, item

_SETTINGS: Final = MergeSettings()
_SHAPES: Final = 100_000
_READ: Final = "the shape that is read"
_LIMITS_S: Final = {"open": 5.0, "read": 5.0, "poll": 1.0, "append": 5.0, "upkeep": 20.0}
"""For 50 GB, and for each 50 GB more."""
_LISTED_S: Final = 120.0
"""For a million files."""
_MEMORY_MB: Final = 2_000

_T = TypeVar("_T")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=int, default=50)
    parser.add_argument("--files", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flushtracker-") as folder:
        log = Path(folder, "log")
        try:
            _large_log(log, arguments.gigabytes)
            _many_files(log, arguments.files)
        except AssertionError as error:
            sys.exit(f"violated: {error}")
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"at most {memory_mb:,} MB of memory")  # noqa: T201
    return int(memory_mb > _MEMORY_MB)


def _large_log(log: Path, gigabytes: int) -> None:
    table = create_shape_log(str(log))
    runs = max(1, gigabytes * 10**9 // _SETTINGS.sealed_bytes)
    for run in range(1, runs + 1):
        _commit(table, list(_run_files(run)))
    append(str(log), [item((100, 1), "insert", "k", {"id": "1"}, shape_id=_READ), commit(100, shape_id=_READ)])
    append(str(log), [item((200, 1), "update", "k", {"id": "2"}, shape_id=_READ), commit(200, shape_id=_READ)])
    files, times = runs * _SETTINGS.files_per_run, max(1.0, gigabytes / 50)
    print(f"{files:,} files of {runs * _SETTINGS.sealed_bytes / 1e9:.0f} GB")  # noqa: T201

    def timed(what: str, do: Callable[[], _T]) -> _T:
        return _timed(what, _LIMITS_S[what] * times, do)

    reader = timed("open", lambda: ShapeLogReader(str(log)))
    read = timed("read", lambda: reader.read_log(_READ))
    assert [row["tx_offset"] for row in read.rows.to_pylist()] == [100, 100, 200, 200]
    assert timed("poll", lambda: reader.read_log(_READ, read.position)).rows.num_rows == 0
    claim, writer = LogClaim(table), row_files(table, {})
    claim.take()
    new = arrow([item((300, 1), "delete", "k", shape_id=_READ), commit(300, shape_id=_READ)])
    written: list[WrittenFile] = list(writer.write([new]))
    timed("append", lambda: claim.append(written, claim.version_of(1)))
    for number in range(_SETTINGS.merge_files):
        lsn = 400 + number
        append(str(log), [item((lsn, 1), "insert", "k", {"id": "1"}, shape_id="other"), commit(lsn, shape_id="other")])
    report = timed("upkeep", lambda: ShapeLogUpkeep(str(log)).run(datetime.now(timezone.utc)))
    assert report.merges == 1, report
    found = LogFiles(DeltaTable(str(log)), {}).current()
    assert sum(not (log / file.path).exists() for file in found) == files, "a merge has touched a sealed run"
    assert reader.read_log(_READ, read.position).rows.num_rows == 2


def _run_files(run: int) -> Iterator[AddAction]:
    """The files of a sealed run: each has a part of the shapes."""
    count, now_ms = _SETTINGS.files_per_run, time.time_ns() // 1_000_000
    for number in range(count):
        first, last = (f"shape {_SHAPES * at // count:06}" for at in (number, number + 1))
        lowest = {"source": SOURCE, "shape_id": first, "tx_offset": 1_000 * run}
        greatest = {"source": SOURCE, "shape_id": last, "tx_offset": 1_000 * run + 999}
        stats = {"numRecords": 100_000, "minValues": lowest, "maxValues": greatest, "nullCount": {}}
        path = f"run-{run:020}-{number:06}-{'0' * 32}.parquet"
        size = _SETTINGS.sealed_bytes // count
        yield AddAction(path, size, {}, now_ms, data_change=True, stats=json.dumps(stats))


def _commit(table: DeltaTable, files: list[AddAction | RemoveAction]) -> None:
    # Not by our own commits, which sync the files.
    table.create_write_transaction(files, "append", table.schema(), commit_properties=CommitProperties())
    table.update_incremental()


def _many_files(log: Path, count: int) -> None:
    """A tenth of them is past the retention."""
    old_s = time.time() - 30 * 86_400
    for number in range(count):
        path = log / f"part-{number:032}.parquet"
        path.touch()
        if number % 10 == 0:
            os.utime(path, (old_s, old_s))
    table = DeltaTable(str(log))
    folder = shape_log_folder(str(log))
    limit_s = _LISTED_S * max(1.0, count / 1_000_000)
    deleted = _timed(f"vacuum of {count:,} files", limit_s, lambda: folder.delete_old_files(table))
    assert deleted == -(-count // 10), f"{deleted} files were deleted"


def _timed(what: str, limit_s: float, do: Callable[[], _T]) -> _T:
    """CPU time, so that a busy machine is no violation."""
    started = time.process_time()
    result = do()
    took_s = time.process_time() - started
    print(f"{what}: {took_s:.2f} s of CPU time, at most {limit_s:.0f}", flush=True)  # noqa: T201
    assert took_s <= limit_s, f"{what} took {took_s:.1f} s of CPU time, more than {limit_s:.0f}"
    return result


if __name__ == "__main__":
    sys.exit(main())
