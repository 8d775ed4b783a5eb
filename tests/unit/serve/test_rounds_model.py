"""Rounds in a model of clients that wait at servers with tails: what is held back, who is woken; and faults of it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from flushtracker.serve import rounds, table_view
from flushtracker.serve.poller import Poller
from flushtracker.serve.rounds import Rounds
from flushtracker.serve.shape_answers import ShapeAnswers
from flushtracker.serve.tail import shape_tail
from flushtracker.serve.tail.shape_tail import ShapeTail
from flushtracker.serve.turns import Turns
from tests.support.mutated import mutated
from tests.support.rounds_world import RoundsWorld
from tests.support.seeds import first_seed, seeds

_HISTORIES: Final = 25
_STEPS: Final = 400
_MOST_HISTORIES: Final = 300
"""Until a fault is found, or all has happened; a client is gone before its turn in one of twenty."""

_HAPPENS: Final = {
    "a round takes long",
    "a later view is held back",
    "later transactions are held back",
    "ahead",
    "waits for what is next",
    "waits for its turn",
    "a round waits for turns",
    "gone before its turn",
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that histories reach, and rounds that take many turns of the event loop."""
    monkeypatch.setattr(shape_tail, "MOST_TRANSACTION_BYTES", 4_000)
    monkeypatch.setattr(rounds, "AT_ONCE", 1)
    # Without a look, a server answers for thirty seconds.
    monkeypatch.setattr(rounds, "LONGEST_S", 0.01)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_rounds_hold_back_what_is_new_and_nobody_waits_for_what_there_is(seed: int) -> None:
    counts, number = Counter[str](), seed
    while number < seed + _HISTORIES or not {name for name, count in counts.items() if count} >= _HAPPENS:
        assert number < seed + _MOST_HISTORIES, f"there were only {counts}, of {_HAPPENS}"
        try:
            counts.update(_played(number))
        except AssertionError as error:
            raise AssertionError(f"seed {number}: {error}") from error
        number += 1


def _played(seed: int) -> Counter[str]:
    async def play() -> Counter[str]:
        return await RoundsWorld(seed).play_rounds(_STEPS)

    return asyncio.run(asyncio.wait_for(play(), 60))


Change = tuple[Callable[..., Any], str, str]

_CONCERNED: Final = Poller._concerned
_IS_RUNNING: Final = Rounds.__dict__["is_running"].fget
_HOLDING: Final = Rounds.__dict__["holding"].fget

_FAULTS: Final[dict[str, Change]] = {
    "the tail holds nothing back": (ShapeTail.hold_back, "if number is not None and", "if False and"),
    "the tail holds back from the last event on": (ShapeTail.hold_back, "self._held is None or", "True or"),
    "the tail holds back for the round before": (ShapeTail.hold_back, "self._held[0] != number", "False"),
    "the tail shows what it holds back": (ShapeTail.shown_upto, "self._held[0] == number", "False"),
    "the tail holds back for ever": (ShapeTail.shown_upto, "self._held[0] == number", "True"),
    "views are not held back": (Poller.shown, "self.rounds.holding is None", "True"),
    "views are held back however long": (Poller.shown, "self.rounds.holding is None", "False"),
    "another shape is held back, too": (table_view.as_before, "now.continues(before)", "True"),
    "a round shows the view before": (_CONCERNED, "= self._known, self.view.shapes", "= self.view.shapes, self._known"),
    "a round wakes nobody for the tail": (_CONCERNED, "= self._changed_ids, {}", "= {}, {}"),
    "a round wakes nobody for a view": (_CONCERNED, "and is_update(", "and False and is_update("),
    "a cut wakes nobody": (_CONCERNED, "or_cut=or_cut", "or_cut=False"),
    "who waits for cuts is not woken by the tail": (_CONCERNED, "in (False, True)", "in (False,)"),
    "a round waits for who has gone before": (Rounds.resumed, "waiter.cancel()", "pass"),
    "a round waits for who has resumed": (Rounds.resumed, "self._woken.remove(waiter)", "pass"),
    "a round begins before the last has ended": (Rounds._continue, "and not self.is_running", ""),
    "a round ends when all are woken": (_IS_RUNNING, "self._queue or self._woken", "self._queue"),
    "a round does not wait for turns": (Rounds._mark, "self.turns.mark()", "None"),
    "a round ends before the last turn": (_IS_RUNNING, "self._marker is not None", "False"),
    "a round does not see the end of the turns": (Rounds._passed, "self._marker = None", "pass"),
    "the next round does not begin after the turns": (Rounds._passed, "self._schedule()", "pass"),
    "a round holds back for ever": (_HOLDING, "self._now_s() - self._began_s < LONGEST_S", "True"),
    "all are let through in one turn": (Turns._next, "self._queue and self._left", "self._queue"),
    "the last is let through first": (Turns._next, "popleft()", "pop()"),
    "turns end while some wait": (Turns._next, "if self._left < self._at_once:", "if False:"),
    "turns do not begin again": (Turns._next, "self._left = self._at_once", "pass"),
    "nothing is held back once all have resumed": (_HOLDING, "or self._is_due", ""),
    "what comes during a round is forgotten": (Rounds.begin, "= True", "= not self.is_running"),
    "the next round does not begin": (Rounds._schedule, "(self._queue or self._is_due)", "self._queue"),
    "the next of a round is not woken": (Rounds._schedule, "(self._queue or self._is_due)", "self._is_due"),
    "who waits is not woken by what the log gets": (ShapeAnswers._changed, "place, or_cut", "1 << 62, or_cut"),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_of_the_rule_is_found(fault: str) -> None:
    with mutated(*_FAULTS[fault]):
        found = (number for number in range(_MOST_HISTORIES) if _is_wrong(first_seed() + number))
        assert next(found, None) is not None, f"no history shows that {fault}"


def _is_wrong(seed: int) -> bool:
    try:
        _played(seed)
    except AssertionError:
        return True
    return False
