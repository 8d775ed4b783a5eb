"""Followers of a shape that begins again, whose snapshot is taken again, or whose slot is lost: they just continue."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from flushtracker.errors import ConfigError, ShapeEndedError, SnapshotMissingError
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import aligned
from flushtracker.shape_log.table.reader import ShapeLogReader, ShapeRead, read_shape
from flushtracker.shape_log.table.snapshots import last_snapshots
from flushtracker.wal.log_offset import LogOffset
from tests.support.foreign_readers import duckdb_rows, polars_rows
from tests.support.healed_log import HealedFollower, HealedLog
from tests.support.seeds import every, play_until, seeds
from tests.support.shape_log_rows import SOURCE
from tests.support.snapshot_world import Table, table_after

_STEPS = 40
_POLLS = (1.0, 0.3, 0.3, 0.1)


def play(log: str, seed: int, *, has_folds: bool, steps: int = _STEPS) -> Counter[str]:
    """Followers poll at random; the last ones only now and then, so that much has happened in between."""
    world = HealedLog(log, seed, has_folds=has_folds)
    followers = [
        HealedFollower(world, world.registry if number % 2 else None, separate=number == 1)
        for number in range(len(_POLLS))
    ]
    ending = [world.resync, world.change, world.write_all, world.snapshot, world.change, world.write_all]
    first: list[Callable[[], object]] = [world.snapshot, *[partial(fold, world)] * has_folds]
    for action in [*first, *[world.step] * steps, *ending]:
        action()
        for follower, share in zip(followers, _POLLS, strict=True):
            if world.rng.random() < share:
                follower.poll()
        if world.rng.random() < 0.4:
            check_offset(world)
        if world.rng.random() < 0.2:
            check_bound(world)
        if world.rng.random() < 0.1:
            check_registry(world)
        if world.rng.random() < 0.1:
            check_foreign(world)
    positions = set()
    for follower in followers:
        for _ in range(4):
            follower.poll()
        assert follower.kept is not None
        positions.add(Position.parse(follower.kept))
    assert len({(each.source, aligned(each.tx_offset)) for each in positions}) == 1
    check_bound(world)
    return world.counts


def fold(world: HealedLog) -> None:
    """Change the table until its history is folded; the shape must be live."""
    while not world.counts["folds"]:
        world.change()
        world.write_all()
        world.upkeep()


def check_offset(world: HealedLog) -> None:
    """The rows at any offset are those of that time, or the reader says that it does not know them.

    Only if no snapshot tells them are they the newest, which has no transaction after the offset yet.
    """
    life = world.life
    committed, taken = life.world.committed, [lsn for (of, _), lsn in world.lsns.items() if of == life.source]
    later = [(life.source, each.lsn) for each in committed if each.lsn and each.lsn >= min(taken, default=0)]
    asked = later if world.rng.random() < 0.5 else sorted(world.seen)
    if not asked:
        return
    source, at = world.rng.choice(asked)
    try:
        read = read_shape(world.log, "users", LogOffset.last_of(at), source, shapes=world.registry, even_if_ended=True)
    except (ConfigError, SnapshotMissingError):
        world.counts["unknown offsets"] += 1
        return
    of, _ = world.taken_as[source, read.position.attempt]
    rows = rows_of(read)
    assert rows == world.expected(read.position)
    if at >= world.lsns[source, read.position.attempt]:
        assert rows == of.table(table_after(each for each in of.world.committed if (each.lsn or 0) <= at))
    else:
        told = [lsn for key, lsn in world.lsns.items() if world.taken_as[key][0] is of and key[0] == source]
        assert min(told) > at >= of.starts_after * (of.incarnation > 1)
    # Who begins there continues as any follower, by the difference if another snapshot has replaced that one since.
    follower = HealedFollower(world, table={str(row["id"]): row for row in rows.values()}, kept=str(read.position))
    follower.poll()
    world.counts["old offsets" if of is not life else "offsets"] += 1


def check_bound(world: HealedLog) -> None:
    """The bound of a read gives the same rows again, if no snapshot tells that the read has later transactions."""
    reader = ShapeLogReader(world.log)
    try:
        read = reader.read_rows("users")
    except (ConfigError, SnapshotMissingError):
        return
    assert read.bound is not None
    again, position = reader.read_rows("users", read.bound), read.position
    world.seen.add((read.source, read.bound.tx_offset))
    if again.position.attempt != position.attempt:
        assert (
            world.taken_as[read.source, again.position.attempt][0] is world.taken_as[read.source, position.attempt][0]
        )
        assert read.bound.tx_offset < world.lsns[read.source, position.attempt]
        return
    assert (rows_of(again), again.bound, again.position) == (rows_of(read), read.bound, position)


def check_registry(world: HealedLog) -> None:
    """Who knows the registry does not read what has ended, or what is to begin again."""
    life, reader = world.life, ShapeLogReader(world.log, world.registry)
    last = last_snapshots(DeltaTable(world.log)).get(life.key)
    if life.ended_at is not None:
        with pytest.raises((ShapeEndedError, SnapshotMissingError)):
            reader.read_rows("users", source=life.source)
    elif last is None or world.taken_as.get((life.source, last.attempt), (None,))[0] is not life:
        with pytest.raises((ConfigError, SnapshotMissingError)):
            reader.read_rows("users", source=life.source)
    else:
        read = reader.read_rows("users", source=life.source)
        assert rows_of(read) == world.expected(read.position)


def check_foreign(world: HealedLog) -> None:
    """By the queries of the page, which know nothing of incarnations: the rows of the last snapshot, or an error."""
    version = DeltaTable(world.log).version()
    try:
        read = ShapeLogReader(world.log).read_rows("users", source=SOURCE)
    except SnapshotMissingError:
        for reader in (duckdb_rows, polars_rows):
            with pytest.raises((duckdb.InvalidInputException, KeyError), match=r"run flushtracker snapshot|unseen"):
                reader(world.log, version, "users", "n0")
        return
    life, _ = world.taken_as[SOURCE, read.position.attempt]
    column = f"n{life.definition}"
    expected = sorted(((row["id"], row.get(column)) for row in world.expected(read.position).values()), key=repr)
    assert duckdb_rows(world.log, version, "users", column) == expected
    assert polars_rows(world.log, version, "users", column) == expected
    world.counts["foreign"] += 1


def rows_of(read: ShapeRead) -> Table:
    """By id, without what is null."""
    return {row["id"]: {name: text for name, text in row.items() if text is not None} for row in read.rows.to_pylist()}


@every(2, 0)
@pytest.mark.parametrize("seed", seeds(1, further=5))
def test_followers_continue_by_the_difference_whatever_begins_again(tmp_path: Path, seed: int) -> None:
    """Nothing is folded, so nobody is told to begin again; each has the rows of its position after every poll."""

    def played(history: int) -> Counter[str]:
        counts = play(str(tmp_path / f"log{history}"), history, has_folds=False)
        assert counts["told"] == 0, counts
        return counts

    play_until(played, seed, "healed", "continued", "resyncs", "snapshots", "waits", "foreign")


@every(2, 1)
@pytest.mark.parametrize("seed", seeds(1, further=3))
def test_a_follower_whose_rows_are_folded_is_told(tmp_path: Path, seed: int) -> None:
    """All others continue, also past a fold, and from the fold's rows to those of what follows."""

    def played(history: int) -> Counter[str]:
        return play(str(tmp_path / f"log{history}"), history, has_folds=True, steps=30)

    play_until(played, seed, "folds", "healed", "continued")


def test_foreign_readers_do_not_take_a_mark_with_nothing_after_it_for_an_empty_shape(tmp_path: Path) -> None:
    """A shape begins again whose history is folded: no row of the log is left that the queries would look at."""
    world = HealedLog(str(tmp_path / "log"), 0, has_folds=True)
    world.snapshot()
    fold(world)
    world.resync()
    world.mark()
    with pytest.raises(SnapshotMissingError):
        read_shape(world.log, "users")
    check_foreign(world)
