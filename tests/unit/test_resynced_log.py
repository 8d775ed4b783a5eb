"""The log of a shape that begins again: no reader mixes its incarnations. Followers: ``test_heal_by_difference.py``."""

from collections import Counter
from pathlib import Path
from random import Random

import duckdb
import pytest
from deltalake import DeltaTable

from flushtracker.delta.log.reader import read_shape
from flushtracker.errors import ConfigError, ShapeEndedError, SnapshotMissingError
from flushtracker.wal.log_offset import LogOffset
from tests.support.foreign_readers import duckdb_rows, polars_rows
from tests.support.resynced_log import ResyncedLog, State
from tests.support.seeds import play_until, seeds

_STEPS = 40


def rows_of(read: object) -> list[tuple[str, str]]:
    return sorted((row["id"], row["n"]) for row in read.rows.to_pylist())  # type: ignore[attr-defined]


def as_rows(state: State) -> list[tuple[str | None, str | None]]:
    return sorted(((row["id"], row["n"]) for row in state.values()), key=repr)


@pytest.mark.parametrize("seed", seeds(1, further=2))
def test_readers_never_mix_incarnations(tmp_path: Path, seed: int) -> None:
    """Whatever is written late, merged, folded, or snapshotted from before; readers in other programs fail or agree.

    Each state that anybody reads is one that the table had, and the newest that the log has of one incarnation.
    """
    play_until(lambda history: played(str(tmp_path / f"log{history}"), history), seed, "marks", "snapshots", "merges")


def played(log: str, seed: int) -> Counter[str]:
    world = ResyncedLog(log, Random(seed))  # noqa: S311  reproducible
    world.snapshot()
    for action in [*[world.step] * _STEPS, world.begin, world.change, world.write_all, world.snapshot, world.upkeep]:
        action()
        if world.rng.random() < 0.5:
            check_readers(world)
        if world.rng.random() < 0.15:
            check_foreign(world)
    check_foreign(world)
    return world.counts


def test_foreign_readers_do_not_take_a_mark_with_nothing_after_it_for_an_empty_shape(tmp_path: Path) -> None:
    """A shape begins again whose history is folded: no row of the log is left that the queries would look at."""
    world = ResyncedLog(str(tmp_path / "log"), Random(0))  # noqa: S311  reproducible
    world.snapshot()
    while not world.counts["folds"]:
        world.change()
        world.write_all()
        world.tx += 100
        world.upkeep()
    world.begin()
    world.mark(world.incarnation)
    assert world.expected is None
    assert world.written
    check_foreign(world)


def check_readers(world: ResyncedLog) -> None:
    """A reader of the log alone, and one that knows the registry: it does not read what is to begin again."""
    if world.expected is None:
        with pytest.raises(SnapshotMissingError, match=r"was begun again \(incarnation [0-9]+\) and has no snapshot"):
            read_shape(world.log, "users")
    else:
        assert rows_of(read_shape(world.log, "users")) == as_rows(world.expected)
    is_begun = world.read_from is not None and world.read_from[0] == world.incarnation
    if not world.is_live:
        with pytest.raises(ShapeEndedError):
            read_shape(world.log, "users", shapes=world.registry)
    elif not is_begun:
        with pytest.raises(SnapshotMissingError, match=f"incarnation {world.incarnation}"):
            read_shape(world.log, "users", shapes=world.registry)
    else:
        assert rows_of(read_shape(world.log, "users", shapes=world.registry)) == as_rows(world.expected or {})
        if world.incarnation > 1:
            check_before(world, LogOffset(world.starts_after - 1, 0))


def check_before(world: ResyncedLog, at: LogOffset) -> None:
    """An offset before the shape began again: what was true then, if the log still has it."""
    try:
        read = read_shape(world.log, "users", at, shapes=world.registry)
    except ConfigError as error:
        assert "starts after" in str(error)  # noqa: PT017
        return
    assert rows_of(read) == as_rows(world.states[max(tx for tx in world.states if tx <= at.tx_offset)])
    world.counts["read before"] += 1


def check_foreign(world: ResyncedLog) -> None:
    """By the queries of the page, which know nothing of incarnations."""
    version = DeltaTable(world.log).version()
    for reader in (duckdb_rows, polars_rows):
        if world.expected is not None:
            assert reader(world.log, version, "users", "n") == as_rows(world.expected)
        elif world.written:
            with pytest.raises((duckdb.InvalidInputException, KeyError), match=r"run flushtracker snapshot|unseen"):
                reader(world.log, version, "users", "n")
