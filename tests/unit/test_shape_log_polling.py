"""Readers that poll all the time, while a writer appends parts of transactions and upkeep merges the files."""

import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from flushtracker.delta.log.reader import ShapeLogReader
from flushtracker.delta.log.table import create_shape_log
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.errors import ConfigError
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.position import Position
from tests.support.shape_log_rows import RandomLog, append, arrow

_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
_SETTINGS = MergeSettings(merge_files=4, files_per_run=3, least_file_bytes=1, sealed_bytes=40_000)
_TRANSACTIONS = 40


class Background:
    """Runs ``work`` over and over in a thread until it returns false, or :meth:`stop`."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work, self._stopped = work, threading.Event()
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set() and self._work():
                pass
        except BaseException as error:  # noqa: BLE001  for the test's own thread
            self.problem = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)
        assert not self.is_running
        assert self.problem is None


def test_polling_readers_see_whole_transactions_once(tmp_path: Path) -> None:
    """Of each shape, a follower gets the whole log in order, and each state is that after some transaction."""
    log = str(tmp_path / "log")
    create_shape_log(log)
    made = RandomLog(3)
    parts = [part for _ in range(_TRANSACTIONS) for part in made.fragments()]
    waiting, merges = list(parts), 0

    def write() -> bool:
        append(log, waiting.pop(0))
        return bool(waiting)

    def keep() -> bool:
        nonlocal merges
        merges += ShapeLogUpkeep(log, settings=_SETTINGS).run(_NOW).merges
        return True

    expected: dict[str, list[dict[str, Any]]] = {shape_id: [] for shape_id in made.shape_ids}
    for row in arrow(row for part in parts for row in part).to_pylist():
        expected[row["shape_id"]].append(row)
    states = {(shape_id, at.tx_offset): rows for shape_id, found in made.at.items() for at, rows in found}
    followed: dict[str, list[dict[str, Any]]] = {shape_id: [] for shape_id in made.shape_ids}
    positions: dict[str, Position | None] = dict.fromkeys(made.shape_ids)
    reader, polls = ShapeLogReader(log), 0

    def poll() -> None:
        nonlocal polls
        for shape_id in made.shape_ids:
            try:
                found = reader.read_log(shape_id, positions[shape_id])
                state = reader.read_rows(shape_id)
            except ConfigError as error:
                assert "has no shape" in str(error)  # noqa: PT017  nothing is written yet
                continue
            followed[shape_id] += found.rows.to_pylist()
            positions[shape_id] = found.position
            assert followed[shape_id] == expected[shape_id][: len(followed[shape_id])]
            if state.bound is not None:
                assert not followed[shape_id] or followed[shape_id][-1]["operation"] == "commit"
                rows = states[shape_id, state.bound.tx_offset].values()
                assert [_filled(row) for row in state.rows.to_pylist()] == [_filled(row) for row in rows]
            polls += 1

    writer, upkeep = Background(write), Background(keep)
    while writer.is_running:
        poll()
    writer.stop()
    poll()
    upkeep.stop()
    assert followed == expected
    assert merges > 3
    assert polls > 20


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}
