"""Readers that poll all the time, while a writer appends parts of transactions and upkeep merges the files."""

from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from flushtracker.delta.log.reader import ShapeLogReader
from flushtracker.delta.log.table import create_shape_log
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.errors import ConfigError
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.position import Position
from tests.support.background import Background
from tests.support.shape_log_rows import RandomLog, append, arrow

_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
_SETTINGS = MergeSettings(merge_files=4, files_per_run=3, least_file_bytes=1, sealed_bytes=40_000)
_TRANSACTIONS = 40


def test_polling_readers_see_whole_transactions_once(tmp_path: Path) -> None:
    """Of each shape, a follower gets the whole log in order, and each state is that after some transaction."""
    log = str(tmp_path / "log")
    create_shape_log(log)
    made = RandomLog(3)
    parts = [part for _ in range(_TRANSACTIONS) for part in made.fragments()]
    merges = 0

    def keep() -> None:
        nonlocal merges
        while not upkeep.stopping.is_set():
            merges += ShapeLogUpkeep(log, settings=_SETTINGS).run(_NOW).merges

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

    upkeep = Background(keep)
    with upkeep:
        with Background(lambda: [*map(partial(append, log), parts)]) as writer:
            while writer.is_running:
                poll()
        poll()
    assert followed == expected
    assert merges > 3
    assert polls > 20


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}
