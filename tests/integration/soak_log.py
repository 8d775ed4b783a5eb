"""``make soak``: a month of a shape log's life in scaled time, in which nothing may grow.

Five minutes of the month are one append of the production classes. Meanwhile upkeep merges files, folds what is older
than seven days, and deletes the logs of shapes that were removed a day ago; each day one shape is removed and one is
added. Replaced files are kept for ten seconds of real time.

Three followers keep every live shape: one reads each hour, one each day in a process that knows nothing yet, and one
each nine days, so it is behind the horizon each time and must be told to begin again. At the end of each day the rows
that they have, and those of ``read_shape``, must be those of a naive reader.

After the first ten days, no day may have more files, bytes, memory, or CPU for a poll than half as much again as the
greatest of the ten days before. Of the table's files only those of runs are compared: how many others wait to be merged
at the end of a day depends on when the last merge was, and has a bound of its own.

``python -m tests.integration.soak_log [--days 30] [--seed N]`` prints one line per day.
"""

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.log.claim import LogClaim
from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.reader import ShapeLogReader
from flushtracker.delta.log.retention import Retain
from flushtracker.delta.log.table import create_shape_log
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import FlushtrackerError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.log_follower import Follower, row_texts
from tests.support.shape_log_rows import SOURCE, RandomLog, arrow
from tests.support.snapshot_world import Table

_EPOCH: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
_DAY: Final = 24 * 60
_STEP: Final = 5
_SHAPES: Final = 12
_KEYS: Final = 40
_UPKEEP_EVERY: Final = 60
_HISTORY: Final = timedelta(days=7)
_KEPT: Final = {
    "delta.logRetentionDuration": "interval 10 seconds",
    "delta.deletedFileRetentionDuration": "interval 10 seconds",
}
_WARM_DAYS: Final = 10
_MOST_GROWTH: Final = 1.5
_MOST_WAITING: Final = MergeSettings().merge_files + _UPKEEP_EVERY // _STEP + 1
"""Appended files: those that are not merged yet, and those of an hour with one of a fold."""


@dataclass(frozen=True)
class DayFigures:
    """What may not grow; of CPU, milliseconds for each poll of one shape."""

    run_files: int
    table_mb: float
    folder_files: int
    log_files: int
    resident_mb: float
    poll_ms: float
    fresh_poll_ms: float


class Followers:
    """One for each shape; all poll every so many minutes, and share what the reader of a process remembers."""

    def __init__(self, log: str, every_minutes: int, *, short_lived: bool = False) -> None:
        self.every_minutes = every_minutes
        self._log, self._short_lived = log, short_lived
        self._reader = ShapeLogReader(log)
        self._each: dict[str, Follower] = {}
        self._polls, self._cpu_s = 0, 0.0
        self.restarts = 0

    def poll(self, shape_ids: list[str]) -> None:
        """Poll these shapes, and forget all others."""
        started = time.process_time()
        known, self._each = self._each, {}
        for shape_id in shape_ids:
            follower = self._each[shape_id] = known.get(shape_id) or Follower(self._log, self._short_lived, shape_id)
            follower.reader = self._reader
            before = follower.restarts
            follower.poll()
            self.restarts += follower.restarts - before
        self._polls += len(shape_ids)
        self._cpu_s += time.process_time() - started

    def table(self, shape_id: str) -> Table:
        return self._each[shape_id].table

    def take_ms(self) -> float:
        """The CPU of each poll since the last call, in milliseconds."""
        spent, self._cpu_s, self._polls = 1e3 * self._cpu_s / max(1, self._polls), 0.0, 0
        return spent


class Month:
    """The log, its writer, its upkeep and its followers."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.log = str(folder / "log")
        self._folder = folder / "log"
        table = create_shape_log(self.log)
        table.alter.set_table_properties(_KEPT)
        self._minute, self._shapes = 0, _SHAPES
        self._random = random.Random(seed)  # noqa: S311  reproducible
        ids = [f"shape-{number:03}" for number in range(_SHAPES)]
        self._world = RandomLog(seed, ids, keys=_KEYS)
        self._registry = RegistryTable(f"{self.log}_shapes", create=True)
        self._register(*ids)
        self._files, self._claim = LogFiles(table, {}), LogClaim(table)
        self._claim.take(None)
        self._upkeep = ShapeLogUpkeep(
            self.log, f"{self.log}_shapes", delete_after=timedelta(days=1), retain=Retain(_HISTORY)
        )
        self.hourly, self.daily = Followers(self.log, 60), Followers(self.log, _DAY, short_lived=True)
        self.late = Followers(self.log, 9 * _DAY)
        self.folds = self.merges = self.deleted = self.vacuumed = 0

    @property
    def _now(self) -> datetime:
        return _EPOCH + timedelta(minutes=self._minute)

    @property
    def _ids(self) -> list[str]:
        return list(self._world.shape_ids)

    def play_day(self) -> DayFigures:
        self._replace_shape()
        for _ in range(_DAY // _STEP):
            self._minute += _STEP
            self._append()
            if self._minute % _UPKEEP_EVERY == 0:
                self._run_upkeep()
            for follower in (self.hourly, self.daily, self.late):
                if self._minute % follower.every_minutes == 0:
                    follower.poll(self._written())
        self._check()
        return self._figures()

    def _append(self) -> None:
        rows = [
            row | {"written_at": self._now} if row["operation"] == "commit" else row
            for row in self._world.transaction()
        ]
        for history in self._world.at.values():
            del history[:-1]
        written = WrittenFile(self._files.write(arrow(rows), None, is_change=True))
        self._claim.append([written], self._claim.version_of(self._minute))

    def _run_upkeep(self) -> None:
        report = self._upkeep.run(self._now)
        self.merges += report.merges
        self.folds += report.folded_shapes
        self.deleted += report.deleted_shapes
        self.vacuumed += report.vacuumed_files

    def _replace_shape(self) -> None:
        gone = self._random.choice(self._ids)
        self._register(gone, removed_at=LogOffset(self._world.tx, 0))
        new, self._shapes = f"shape-{self._shapes:03}", self._shapes + 1
        self._world.shape_ids = [*(each for each in self._ids if each != gone), new]
        del self._world.rows[gone], self._world.at[gone]
        self._world.rows[new], self._world.at[new] = {}, []
        self._register(new)

    def _register(self, *shape_ids: str, removed_at: LogOffset | None = None) -> None:
        entries = [
            ShapeEntry(SOURCE, ShapeDefinition(shape_id, ("public", "t")), 7, LogOffset(9, 0), removed_at=removed_at)
            for shape_id in shape_ids
        ]
        self._registry.append([entry.to_json() for entry in entries], self._now)

    def _written(self) -> list[str]:
        """The live shapes that have a transaction."""
        return [shape_id for shape_id in self._ids if self._world.at[shape_id]]

    def _check(self) -> None:
        """What everybody has is what a naive reader has."""
        reader = ShapeLogReader(self.log)
        for shape_id in self._written():
            expected = row_texts(self._world.rows[shape_id].values())
            assert row_texts(reader.read_rows(shape_id).rows.to_pylist()) == expected, shape_id
            for follower in (self.hourly, self.daily):
                assert row_texts(follower.table(shape_id).values()) == expected, shape_id
        if self._minute % self.late.every_minutes == 0:
            for shape_id in self._written():
                assert row_texts(self.late.table(shape_id).values()) == row_texts(self._world.rows[shape_id].values())

    def _figures(self) -> DayFigures:
        files = self._files.current()
        waiting = sum(file.run is None for file in files)
        assert waiting < _MOST_WAITING, f"{waiting} files wait to be merged"
        return DayFigures(
            run_files=len(files) - waiting,
            table_mb=sum(file.bytes for file in files) / 1e6,
            folder_files=sum(1 for path in self._folder.iterdir() if path.is_file()),
            log_files=sum(1 for _ in (self._folder / "_delta_log").iterdir()),
            resident_mb=_resident_bytes() / 1e6,
            poll_ms=self.hourly.take_ms(),
            fresh_poll_ms=self.daily.take_ms(),
        )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def require_flat(days: list[DayFigures]) -> None:
    """Raise ``AssertionError`` if a figure of the last day is half as much again as the ten days before it."""
    if len(days) <= 2 * _WARM_DAYS:
        return
    *before_it, last_day = map(asdict, days)
    for name, last in last_day.items():
        before = max(day[name] for day in before_it[-_WARM_DAYS:])
        assert last <= _MOST_GROWTH * before, f"{name} grew from at most {before:.1f} to {last:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    folder, started = Path(tempfile.mkdtemp(prefix="flushtracker-")), time.monotonic()
    month, days = Month(folder, arguments.seed), list[DayFigures]()
    try:
        for day in range(1, arguments.days + 1):
            days.append(month.play_day())
            figures = " ".join(f"{name}={value:.1f}" for name, value in asdict(days[-1]).items())
            done = f"merges={month.merges} folds={month.folds} deleted={month.deleted} vacuumed={month.vacuumed}"
            _report(f"{time.monotonic() - started:.0f}s {day=} {figures} {done} restarts={month.late.restarts}")
            require_flat(days)
        assert month.hourly.restarts == month.daily.restarts == 0
        assert arguments.days < 2 * _WARM_DAYS or min(month.late.restarts, month.folds, month.deleted) > 0
    except (AssertionError, FlushtrackerError) as error:
        sys.exit(f"violated with seed {arguments.seed}; the log is in {folder}: {error}")
    shutil.rmtree(folder)
    _report(f"days={arguments.days} seed={arguments.seed}: nothing grew, nothing was lost")


def _report(line: str) -> None:
    print(line, flush=True)  # noqa: T201  a program prints


if __name__ == "__main__":
    main()
