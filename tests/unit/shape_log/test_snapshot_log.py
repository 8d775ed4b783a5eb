"""Snapshots in the shape log, at random moments of a random table: every change can follow the one before."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flushtracker.delta.data_file import WrittenFile
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.snapshots import SnapshotsTaken, snapshot_incarnations
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.seeds import play_until, seeds
from tests.support.shape_log_rows import SOURCE, append, arrow, item
from tests.support.snapshot_log import Play, append_snapshot, judge, world_with_snapshot
from tests.support.snapshot_world import XIDS, SnapshotWorld, Table


def test_every_change_can_follow_a_snapshot_taken_at_any_moment() -> None:
    """Transactions become visible in another order than they commit, and xids pass 2**32."""
    left_out = 0
    for seed in range(600):
        world, snapshot, rows = world_with_snapshot(seed)
        left_out += judge(world, rows, snapshot.contains)
    assert left_out > 300


def can_follow(world: SnapshotWorld, rows: Table, is_left_out: Callable[[int, int], bool]) -> bool:
    try:
        judge(world, rows, is_left_out)
    except AssertionError:
        return False
    return True


def test_the_judge_notices_a_reader_that_filters_otherwise() -> None:
    """Without the filter, by LSN, or by xmax alone, as one might think."""
    nothing = by_lsn = by_xmax = 0
    for seed in range(300):
        world, snapshot, rows = world_with_snapshot(seed)
        last, xmax = max((each.lsn or 0 for each in world.seen[1]), default=0), snapshot.visible.xmax % XIDS
        nothing += not can_follow(world, rows, lambda _tx, _xid: False)
        by_lsn += not can_follow(world, rows, lambda tx, _xid, last=last: tx <= last)  # type: ignore[misc]
        by_xmax += not can_follow(world, rows, lambda _tx, xid, xmax=xmax: xid < xmax)  # type: ignore[misc]
    assert min(nothing, by_lsn, by_xmax) > 10


def test_rows_of_a_shape_that_failed_are_taken_out_of_files(tmp_path: Path) -> None:
    """Files without any of them stay as they are, and one of nothing else is left out."""
    files = LogFiles(create_shape_log(str(tmp_path / "log")), {})

    def written(*shape_ids: str) -> WrittenFile:
        rows = [item((0, n), "insert", "k", {"id": "1"}, shape_id=shape_id) for n, shape_id in enumerate(shape_ids)]
        return WrittenFile(files.write(arrow(rows), None, is_change=True))

    mixed, other, failed = written("a", "bad", "b", "bad"), written("a", "c"), written("bad")
    found = files.without([mixed, other, failed], {"bad", "worse"})
    assert [file.rows for file in found] == [2, 2]
    assert files.read(found[0].action.path)["shape_id"].to_pylist() == ["a", "b"]
    assert found[1] is other
    assert files.without([mixed, failed], set()) == [mixed, failed]
    assert files.without([failed], {"bad"}) == []


def test_shapes_with_a_snapshot_are_read_again_only_after_a_commit_of_snapshots(tmp_path: Path) -> None:
    """Not after an append, of which there is one each second."""
    log = str(tmp_path / "log")
    create_shape_log(log)
    taken = SnapshotsTaken(log, {})
    assert (taken.update(), taken.incarnations) == (False, {})
    append(log, [item((7, 1), "insert", "k", {"id": "1"})])
    assert taken.update() is False
    assert append_snapshot(log, ShapeSnapshot(1, MvccSnapshot(9, 9, ()), 9, 9), {})
    assert (taken.update(), taken.incarnations) == (True, {(SOURCE, "users"): 1})
    assert taken.incarnations == snapshot_incarnations(log, {})
    append(log, [item((8, 1), "insert", "l", {"id": "2"})])
    assert taken.update() is False


@pytest.mark.parametrize("seed", seeds(1, further=3))
def test_readers_have_the_table_whatever_is_appended_merged_or_taken_again(tmp_path: Path, seed: int) -> None:
    """A follower that began with an older snapshot gets all: what is missing from the log, by the difference."""

    def played(history: int) -> dict[str, int]:
        play = Play(str(tmp_path / f"log{history}"), history)
        for _ in range(30):
            play.step()
            play.check()
        for follower in play.followers:
            follower.poll()
        assert all(each.polls > 0 == each.restarts for each in play.followers)
        return {"snapshots": len(play.snapshots), "merges": play.merges}

    play_until(played, seed, "snapshots", "merges")


@pytest.mark.parametrize("seed", seeds(1, further=7))
def test_folds_lose_nothing_whatever_is_taken_again_or_killed(tmp_path: Path, seed: int) -> None:
    """Each reader has the table; one behind the horizon is told so. A snapshot that lacks what is folded is refused."""

    def played(history: int) -> dict[str, int]:
        play = Play(str(tmp_path / f"log{history}"), history, folds=True)
        for _ in range(40):
            play.step()
            play.check()
        return {"folds": play.folds}

    play_until(played, seed, "folds")
