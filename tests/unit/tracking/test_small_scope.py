"""Every history of a few transactions through the code that decides an ack; ``make soak`` has larger scopes.

Each scope takes seconds, of the largest ones a part with each commit. The numbers of states are stated, so that a
search that visits less is noticed.
"""

from dataclasses import replace

import numpy as np
import pytest

from flushtracker.tracking.shape_table import ShapeTable
from tests.support.seeds import in_turn
from tests.support.small_scope import Case, SmallScope, all_cases, removals


def _search(cases: list[Case], *, exact: bool = True) -> tuple[int, int]:
    """The states and histories of all cases."""
    scopes = [SmallScope(case, exact=exact) for case in cases]
    for scope in scopes:
        scope.search()
    return sum(scope.states for scope in scopes), sum(scope.histories for scope in scopes)


@pytest.mark.parametrize("part", in_turn(range(4)))
def test_two_fragments_of_two_transactions_and_a_lost_checkpoint(part: int) -> None:
    cases = list(all_cases(1, 2, 2, losses=1))
    assert len(cases) == 16
    assert (
        _search(cases[part::4])
        == [
            (1490, 155067870121),
            (4369, 319814993209951),
            (5026, 430727883596222),
            (11343, 473711870400706431),
        ][part]
    )


@pytest.mark.parametrize("part", in_turn(range(4)))
def test_two_shapes_and_a_resend(part: int) -> None:
    cases = list(all_cases(2, 2, 1, resends=1))
    assert len(cases) == 16
    assert (
        _search(cases[part::4])
        == [
            (1734, 8440565118),
            (7593, 114323945736316),
            (7593, 114323945736316),
            (21870, 261154006243067906),
        ][part]
    )


@pytest.mark.parametrize("part", in_turn(range(2)))
def test_a_shape_is_removed_at_any_moment_after_its_last_transaction(part: int) -> None:
    cases = list(removals(all_cases(1, 2, 1, resends=1, losses=1)))
    assert len(cases) == 4
    assert _search(cases[part::2]) == [(5854, 810345352532), (11197, 2156415156065004)][part]


def test_merged_transactions_are_acknowledged_late_but_never_early() -> None:
    cases = [replace(case, max_pending=1) for case in all_cases(1, 3, 1, losses=1)]
    assert _search(cases, exact=False) == (5533, 49687882047704)


def test_the_search_notices_an_ack_that_is_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_all(table: ShapeTable, _max_pending: int) -> None:
        table.txns.keep(np.zeros(len(table.txns.indexes), np.bool_))

    monkeypatch.setattr(ShapeTable, "_drop_flushed", drop_all)
    with pytest.raises(AssertionError, match=r"ack 100 before transaction 0 is durable"):
        _search(list(all_cases(1, 1, 2)))


def test_the_search_notices_an_ack_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShapeTable, "_raise", lambda *_: None)
    with pytest.raises(AssertionError, match=r"covers 0 transactions rather than 1|the last ack is"):
        _search(list(all_cases(1, 1, 2)))
