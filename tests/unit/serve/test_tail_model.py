"""Tails in a model of all programs: clients are shown what the log does not have yet; and faults of the rule."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import pytest

from flushtracker.serve.tail import shape_tail, tail_link, tails
from flushtracker.serve.tail.shape_tail import ShapeTail
from tests.support.mutated import mutated
from tests.support.seeds import first_seed, seeds
from tests.support.tail_world import TailWorld

_HISTORIES: Final = 200
_STEPS: Final = 400
_MOST_HISTORIES: Final = 300
"""Until a fault is found."""

_HAPPENS: Final = {
    *("shown", "ahead", "not the end", "by a fold", "in the cut", "left out", "from the log", "begun"),
    *("waits", "resyncs"),
}

Change = tuple[Callable[..., Any], str, str]

_LINK: Final = ShapeTail._link
_IS_LINKED: Final = tails._is_linked
_FAULTS: Final[dict[str, tuple[Change, ...]]] = {
    "a start is next, whatever it follows": ((_LINK, "is_start=False", "is_start=event.start"),),
    "a gap is ignored": ((_LINK, 'if position == "gap":', "if False:"),),
    "a gap inside a transaction is ignored": (
        (_LINK, "event.follows, self.cursor, is", "LogOffset(event.follows.tx_offset, 0), self.cursor, is"),
    ),
    "a lost commit is ignored": (
        (_LINK, "event.follows, self.cursor, is", "LogOffset(event.follows.tx_offset, 0), self.cursor, is"),
        (ShapeTail.add, "self._skip(self._open_tx)", "self._open_tx = tx"),
    ),
    "a resend is taken again": ((_LINK, 'return position != "resend"', "return True"),),
    "the base stays when the oldest are dropped": ((ShapeTail._drop_oldest, "self.base = ", "_ = "),),
    "truncates are shown": ((ShapeTail.add, "or not _is_shown(event.items)", ""),),
    "any size": ((ShapeTail.add, "self._open_bytes + size > MOST_TRANSACTION_BYTES", "False"),),
    "any schema": ((ShapeTail.add, "if event.schema != self.schema:", "if False:"),),
    "the schema that was seen is ignored": ((tails._is_of, "tail.schema == schema and", "True and"),),
    "the incarnation that was seen is ignored": ((tails._is_of, "tail.incarnation == incarnation_of(seen)", "True"),),
    "the base is ignored": ((_IS_LINKED, "tail.base > LogOffset.last_of(reached)", "False"),),
    "the snapshot's transactions are shown again": (
        (tails._not_contained, "if snapshot is None or not snapshot.contains(each.tx_offset, each.xid):", "if True:"),
    ),
    "any snapshot": ((tail_link._knows_rows_of, "handle.attempt == seen.found.attempt", "True"),),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that histories reach."""
    monkeypatch.setattr(shape_tail, "MOST_TRANSACTION_BYTES", 4_000)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_a_tail_shows_what_the_log_will_have_and_nothing_twice(seed: int) -> None:
    """However events are cut, resent and lost, and whatever a server knows of the log."""
    counts = Counter[str]()
    for number in range(seed, seed + _HISTORIES):
        world = TailWorld(number)
        try:
            counts.update(world.play(_STEPS))
        except AssertionError as error:
            raise AssertionError(f"seed {number}: {error}") from error
    assert {name for name, count in counts.items() if count} == _HAPPENS


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_of_the_rule_is_found(fault: str) -> None:
    """A client gets too little, too much, or something twice in some history."""
    with ExitStack() as stack:
        for function, old, new in _FAULTS[fault]:
            stack.enter_context(mutated(function, old, new))
        found = (number for number in range(_MOST_HISTORIES) if _is_wrong(first_seed() + number))
        assert next(found, None) is not None, f"no history shows that {fault}"


def _is_wrong(seed: int) -> bool:
    try:
        TailWorld(seed).play(_STEPS)
    except AssertionError:
        return True
    return False
