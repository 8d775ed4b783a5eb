"""Faults in what a subset says of itself, and in where its client continues. A test finds each; the table names it.

By hand, the random model (``test_subset_model.py``) found those of xids and of offsets, too.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from flushtracker.errors import FlushtrackerError
from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.subset.subset_answers import SubsetAnswers
from flushtracker.serve.subset.subset_rows import _bound, subset_body
from tests.support.mutated import mutated
from tests.unit.serve import test_subsets

_HANGS_S: Final = 60.0
_FOUND: Final = (asyncio.TimeoutError, AssertionError, FlushtrackerError, pytest.fail.Exception)
_AS_OF_THE_OFFSET: Final = test_subsets.test_a_subset_has_the_rows_that_match_as_of_the_clients_offset
_BEGINS_AGAIN: Final = test_subsets.test_a_client_whose_offset_is_gone_keeps_it_and_begins_again_by_its_stream

_MUTANTS: Final[dict[str, tuple[Callable[..., Any], str, str, Callable[[str], Coroutine[Any, Any, None]]]]] = {
    "xids below the greatest are contained": (
        *(subset_body, '"xmin":"{_NO_XID}","xmax":"{_NO_XID}"', '"xmin":"{since}","xmax":"{since}"'),
        test_subsets.test_a_subset_contains_no_transaction_of_the_clients_stream,
    ),
    "the stream is filtered past the offset": (
        *(subset_body, '"database_lsn":"{since:d}"', '"database_lsn":"{since + 8:d}"'),
        test_subsets.test_a_subset_contains_no_transaction_of_the_clients_stream,
    ),
    "the newest rows are taken for those of the offset": (
        *(OpenTables.rows_at, "if tx is None or tx >= now.tx:", "if True:"),
        _AS_OF_THE_OFFSET,
    ),
    "the rows of a snapshot are taken for older ones": (
        *(OpenTables.rows_at, "if has_changes(self._finder.table, found, tx, begins):", "if False:"),
        test_subsets.test_rows_of_a_snapshot_that_is_ahead_of_the_log_are_not_taken_for_older_ones,
    ),
    "a client is moved to the newest rows": (
        *(SubsetAnswers._at, "str(offset), read", 'f"{read.shape.tx + 8}_0", read'),
        _AS_OF_THE_OFFSET,
    ),
    "a client that must begin again gets the current handle": (
        *(SubsetAnswers._at, "SubsetAnswer(str(handle)", "SubsetAnswer(str(read.shape.handle)"),
        _BEGINS_AGAIN,
    ),
    "rows older than the offset": (
        *(SubsetAnswers._at, "seen = await self._looks.reached(request, seen)", "pass"),
        test_subsets.test_a_client_that_is_ahead_gets_no_older_rows,
    ),
    "a new client continues after the rows": (
        *(OpenTables.since, "return max(tx, found.begins_at)", "return max(found.last_commit or 0, found.begins_at)"),
        test_subsets.test_a_new_client_continues_before_what_another_answer_may_have_given_it,
    ),
    "a condition on what is not shown": (
        *(_bound, "if hidden:", "if False:"),
        test_subsets.test_a_subset_reads_only_what_the_shape_shows,
    ),
}


@pytest.mark.parametrize("name", _MUTANTS)
def test_a_fault_of_subsets_is_found(log: str, name: str) -> None:
    function, old, new, test = _MUTANTS[name]
    with mutated(function, old, new), pytest.raises(_FOUND):
        asyncio.run(asyncio.wait_for(test(log), _HANGS_S))
