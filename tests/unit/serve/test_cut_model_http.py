"""Clients of HTTP in the model of cuts: what they combine of several shapes is as of one commit."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from flushtracker.serve.seen_shape import SeenShape
from tests.support import cut_server
from tests.support.cut_clients import CutClient
from tests.support.cut_server import CutReaders
from tests.support.cut_world import CutWorld, Faults

_SEEDS = 24
_STEPS = 400
_BEFORE = 100
_ASKS = 0.3
_AHEAD = 0.4


async def _play(seed: int, faults: Faults | None = None, ahead: float = 0.0) -> CutReaders:
    """Clients that have combined what they have; raises ``AssertionError`` if that was ever wrong."""
    world = CutWorld(seed, faults, is_calm=True)
    for _ in range(_BEFORE):
        world.step()
    readers = CutReaders(world, ahead=ahead)
    for _ in range(_STEPS - _BEFORE):
        world.step()
        if world.rng.random() < _ASKS:
            await readers.step()
    if faults is None:
        world.rest()
        await readers.rest()
    return readers


def _played(seed: int, ahead: float = 0.0) -> CutReaders:
    try:
        return asyncio.run(_play(seed, ahead=ahead))
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def test_what_clients_combine_is_as_of_one_commit() -> None:
    """By the least of their LSNs, over any servers, with kills, removals, resyncs, snapshots, folds and restores."""
    assert sum(_played(seed).compared for seed in range(_SEEDS)) > 5 * _SEEDS


def test_clients_that_were_shown_more_than_the_log_has_lose_nothing() -> None:
    """The same, where a server shows transactions before the log has them: no other one takes them back."""
    played = [_played(seed, _AHEAD) for seed in range(_SEEDS)]
    assert sum(each.compared for each in played) > 5 * _SEEDS
    assert sum(each.shown for each in played) > 5 * _SEEDS


def _ahead(seen: SeenShape, tx: int) -> int | None:
    """A later LSN than the shape is complete up to."""
    return None if seen.cut is None else max(seen.cut, tx) + 8


def _of_rows(seen: SeenShape, tx: int) -> int | None:
    """Also if the rows are of a snapshot that the cut has not reached."""
    return None if seen.cut is None else max(seen.cut, tx)


def _below_first(clients: Sequence[CutClient]) -> object:
    """Without waiting for the first LSN of each."""
    lsn = min(client.lsn for client in clients)
    return None if lsn < 0 else (lsn, {each.params["shape"]: each.rows_at(lsn) for each in clients})


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "seed"),
    [(SeenShape, "lsn", _ahead, 2), (SeenShape, "lsn", _of_rows, 19), (cut_server, "combined", _below_first, 1)],
)
def test_what_is_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, wrong: Callable[..., object], seed: int
) -> None:
    """What the server says, or the client's part of the rule; ``seed`` has found it, and others may."""
    monkeypatch.setattr(owner, name, wrong)
    assert any(map(_is_wrong, [seed, *range(_SEEDS)]))


def _is_wrong(seed: int) -> bool:
    try:
        asyncio.run(_play(seed, Faults()))
    except AssertionError as error:
        return "client of" in str(error)
    return False
