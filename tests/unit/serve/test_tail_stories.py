"""What a tail shows whom, by story: a client gets all after its place from the tail, or is left to the log."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest

from flushtracker.serve import messages
from flushtracker.serve.poller import FORGET_S
from flushtracker.serve.rendering import Rendering
from flushtracker.serve.tail import shape_tail, tail_link
from flushtracker.serve.tail.shape_tail import ShapeTail
from flushtracker.shape_log.log_row import LogRow, commit_row, item_row
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.mutated import mutated
from tests.support.one_tail import COMMIT, FIRST, KEY, LIVE, MOST_BYTES, SCHEMA, SECOND, THIRD, Tail, event, seen, sent
from tests.support.sample_registry import taken
from tests.support.shape_log_rows import SOURCE


def test_what_follows_is_shown_before_the_log_has_it() -> None:
    """To a client at the last transaction that the log has, and to one that is ahead of it."""
    tail = Tail(FIRST, SECOND, THIRD)
    assert [tail.shows(place, seen(104)) for place in (104, 200, 304)] == [[200, 304], [304], []]
    assert tail.shows(88, seen(104)) is None


def test_start_above_cursor() -> None:
    """It says nothing of what the tail lacks: transactions that the log has got in between."""
    tail = Tail(FIRST, event(304, 0, follows=(295, 0), start=True))
    assert tail.shows(104, seen(104)) is None
    assert tail.shows(200, seen(200)) is None
    assert tail.shows(304, seen(304)) == []


def test_start_above_cursor_of_a_quiet_shape() -> None:
    """Once a cut is there, whoever has all of the log has all that the start skips."""
    tail = Tail(FIRST, event(304, 0, follows=(295, 0), start=True))
    assert tail.shows(104, seen(104, cut=294)) is None
    assert tail.shows(104, seen(104, cut=295)) == [304]
    assert tail.shows(104, seen(200, cut=295)) is None


def test_gap_then_start() -> None:
    """What was lost comes again, but the tail goes on from what it has."""
    tail = Tail(FIRST, THIRD)
    assert tail.shows(104, seen(104)) is None
    assert tail.shows(200, seen(104)) == [304]
    tail.add(FIRST, SECOND, THIRD, event(400, 0, follows=(304, 0)))
    assert tail.shows(104, seen(104)) is None
    assert tail.shows(200, seen(104)) == [304, 400]


@pytest.mark.parametrize("follows", [(104, 2), (104, 0)], ids=["a gap", "a contradiction"])
def test_commit_lost_between_fragments(follows: tuple[int, int]) -> None:
    """The open transaction is never shown, nor what follows to a client that lacks it."""
    tail = Tail(event(104, 0, follows=(95, 0), is_whole=False, start=True), event(200, 0, follows=follows))
    assert tail.shows(96, seen(96)) is None
    assert tail.shows(104, seen(96)) == [200]


def test_resend_cut_otherwise() -> None:
    """Each item is shown once, whichever fragment it comes in."""
    tail = Tail(event(104, 0, 2, follows=(95, 0), is_whole=False, start=True))
    tail.add(event(104, 0, follows=(95, 0), is_whole=False, start=True), event(104, 2, 4, follows=(104, 0)))
    tail.add(event(104, 0, 2, 4, follows=(95, 0), start=True))
    page = tail.tails.page(seen(96), seen(96).handle, 96, MOST_BYTES)
    assert page is not None
    assert [row[:2] for each in page.transactions for row in each.rows()] == [(104, 0), (104, 2), (104, 4)]


def test_tail_begins_inside_transaction() -> None:
    """That one is left to the log."""
    tail = Tail(event(104, 2, follows=(104, 0)), SECOND)
    assert tail.shows(96, seen(96)) is None
    assert tail.shows(104, seen(96)) == [200]


def test_oldest_dropped_under_client() -> None:
    """By memory: the client is left to the log until that has what was dropped."""
    tail = Tail(FIRST, SECOND, THIRD)
    least = tail.tails.memory_bytes
    tail = Tail(FIRST, SECOND, THIRD, memory_bytes=least - 1)
    assert tail.tails.memory_bytes < least
    assert tail.shows(96, seen(96)) is None
    assert tail.shows(200, seen(96)) == [304]


def test_place_that_the_log_has_passed_is_known() -> None:
    """The log may have been restored without it: it must have that transaction, as the tail or the cut tells."""
    tail = Tail(SECOND, THIRD)
    assert [tail.shows(place, seen(304)) for place in (104, 200)] == [None, [304]]
    assert tail.shows(104, replace(seen(304), cut=104)) == [200, 304]


def test_snapshot_contains_tail_transaction() -> None:
    """By its xid, not by its LSN; the client's place is never one that the log leaves out."""
    snapshot = taken(1, "200:400:200,304", 304)
    tail = Tail(FIRST, SECOND, THIRD, event(400, 0, follows=(304, 0), xid=500))
    assert tail.shows(96, seen(96, snapshot)) == [200, 304, 400]
    contained = taken(1, "200:400:200", 304)
    assert tail.shows(96, seen(96, contained)) == [200, 400]
    page = Tail(FIRST).tails.page(seen(96, contained), seen(96, contained).handle, 96, MOST_BYTES)
    assert page is None or page.tx == 96


def test_snapshot_again_while_ahead() -> None:
    """Only a read of the log can tell what a client of the one before lacks."""
    tail = Tail(FIRST, SECOND, THIRD)
    assert tail.shows(200, seen(104, taken(1, "90:90:", 96)), attempt=1) == [304]
    assert tail.shows(200, seen(104, taken(2, "250:250:", 204)), attempt=1) is None
    assert tail.shows(200, seen(104, taken(1, "90:90:", 96)), attempt=2) is None


def test_fold_while_ahead() -> None:
    """Whoever is past its horizon goes on, if it started from what the fold was made from."""
    tail = Tail(FIRST, SECOND, THIRD)
    fold = ShapeSnapshot.fold(5, 200, 200, taken(3, "90:90:", 96))
    assert tail.shows(200, seen(200, fold), attempt=3) == [304]
    assert tail.shows(304, seen(200, fold), attempt=3) == []
    assert tail.shows(104, seen(200, fold), attempt=3) is None
    assert tail.shows(200, seen(200, fold), attempt=2) is None


def test_incarnation_begins() -> None:
    """It has a chain of its own, and events of the one before are ignored from then on."""
    begun = replace(LIVE, definition=replace(LIVE.definition, incarnation=2))
    again = replace(taken(4, "250:250:", 248), incarnation=2, starts_after=248)
    tail = Tail(FIRST, SECOND, event(304, 0, follows=(95, 0), start=True, incarnation=2))
    tail.add(event(240, 0, follows=(200, 0)))
    assert tail.shows(200, seen(200)) is None
    assert tail.shows(248, seen(200, again, entry=begun)) == [304]
    assert tail.shows(248, seen(200, taken(3, "90:90:", 96), entry=begun)) is None


def test_incarnation_whose_first_event_was_lost() -> None:
    """Its chain begins with what the tail has of it."""
    begun = replace(LIVE, definition=replace(LIVE.definition, incarnation=2))
    again = replace(taken(4, "250:250:", 248), incarnation=2, starts_after=248)
    tail = Tail(FIRST, event(400, 0, follows=(304, 0), incarnation=2))
    assert tail.shows(248, seen(200, again, entry=begun)) is None
    assert tail.shows(304, seen(200, again, entry=begun)) == [400]


def test_truncate_in_tail() -> None:
    """No message can express it, so the log answers with a 409 as before."""
    truncate = event(200, 2, follows=(200, 0), operation="truncate")
    later = event(304, 0, follows=(200, 2))
    tail = Tail(FIRST, event(200, 0, follows=(104, 2), is_whole=False), truncate, later)
    assert tail.shows(104, seen(104)) is None
    assert tail.shows(200, seen(200)) == [304]
    tail = Tail(FIRST, event(200, 0, follows=(104, 2), operation="truncate"), THIRD)
    assert tail.shows(104, seen(104)) is None
    assert tail.shows(200, seen(200)) == [304]


def test_truncate_in_tail_leaves_the_later_fragments_out() -> None:
    """Until its commit, nothing of its transaction is taken."""
    tail = Tail(event(200, 0, follows=(104, 2), is_whole=False, operation="truncate"), event(200, 2, follows=(200, 0)))
    assert tail.shows(104, seen(104)) is None
    tail.add(event(304, 0, follows=(200, 2)))
    assert tail.shows(200, seen(200)) == [304]


def test_large_transaction() -> None:
    """In one event, or in several."""
    size = shape_tail.MOST_TRANSACTION_BYTES
    tail = Tail(FIRST, event(200, 0, follows=(104, 2), value={"id": "x" * size}), THIRD)
    assert [tail.shows(104, seen(104)), tail.shows(200, seen(200))] == [None, [304]]
    first = event(200, 0, follows=(104, 2), value={"id": "x" * (size // 2)}, is_whole=False)
    tail = Tail(FIRST, first, event(200, 2, follows=(200, 0), value={"id": "x" * (size // 2)}))
    assert [tail.shows(104, seen(104)), tail.shows(200, seen(200))] == [None, []]
    assert tail.tails.memory_bytes == 0


def test_column_added_type_changed_before_registry() -> None:
    """Under the schema that a server has seen, only rows of that schema are shown."""
    tail = Tail(FIRST, SECOND, replace(THIRD, schema="other"))
    assert tail.shows(200, seen(200)) is None
    assert tail.shows(200, seen(200, schema="other")) == [304]
    assert tail.shows(104, seen(104, schema="other")) is None


def test_column_added_inside_a_transaction() -> None:
    """It is left to the log, under either schema."""
    tail = Tail(FIRST, event(200, 0, follows=(104, 2), is_whole=False))
    tail.add(event(200, 2, follows=(200, 0), schema="other"), event(304, 0, follows=(200, 2), schema="other"))
    assert tail.shows(104, seen(104, schema="other")) is None
    assert tail.shows(200, seen(200, schema="other")) == [304]


def test_events_without_a_schema_are_not_shown() -> None:
    """They are of a capture of an earlier release; a server that does not know the table shows none, either."""
    tail = Tail(replace(FIRST, schema=None), replace(SECOND, schema=None))
    assert [tail.shows(104, seen(104, schema=schema)) for schema in (SCHEMA, None)] == [None, None]


def test_shape_removed_in_same_batch() -> None:
    """A server that has seen the removal shows nothing more."""
    tail = Tail(FIRST, SECOND)
    assert tail.shows(104, seen(104)) == [200]
    assert tail.shows(104, seen(104, entry=replace(LIVE, removed_at=LogOffset.last_of(200)))) is None
    assert tail.shows(104, seen(104, entry=None)) is None


def test_another_digest_is_left_to_the_log() -> None:
    """Such as that of another source or another log."""
    by = seen(104)
    tail = Tail(FIRST, SECOND).tails
    assert tail.page(by, replace(by.handle, digest="f" * 16), 104, MOST_BYTES) is None


def test_unwatched_then_watched() -> None:
    """Nothing is kept of a shape that nobody asks for, and what it has missed is not shown."""
    tail = Tail(FIRST)
    tail.tails.expire(FORGET_S)
    assert tail.tails.asked == {KEY}
    tail.tails.expire(FORGET_S + 1)
    assert (tail.tails.asked, tail.tails.memory_bytes) == (frozenset(), 0)
    tail.add(SECOND)
    tail.tails.ask(KEY, 2 * FORGET_S)
    tail.add(THIRD)
    assert tail.shows(104, seen(104)) is None
    assert tail.shows(200, seen(104)) == [304]


def test_unreadable_event() -> None:
    """Whatever it was, the next event says what it follows."""
    tail = Tail(FIRST)
    tail.tails.forget(KEY)
    tail.add(THIRD)
    assert [tail.shows(104, seen(104)), tail.shows(200, seen(104))] == [None, [304]]


def test_page_has_whole_transactions() -> None:
    """At least one, and no more than fit."""
    tail = Tail(FIRST, SECOND, THIRD).tails
    page = tail.page(seen(96), seen(96).handle, 96, 1)
    assert page is not None
    assert ([each.tx_offset for each in page.transactions], page.tx) == ([104], 104)


def test_rows_are_those_of_the_log() -> None:
    """So its messages are byte for byte those that the log's rows give."""
    tail = Tail(FIRST)
    page = tail.tails.page(seen(96), seen(96).handle, 96, MOST_BYTES)
    assert page is not None
    (transaction,) = page.transactions
    items = [LogItem(LogOffset(104, op), "insert", '"public"."users"/"1"', {"id": "1", "note": "é\n"}) for op in (0, 2)]
    rows = [item_row(each, 104, 0) for each in items]
    rows.append(commit_row(LogOffset.last_of(104), COMMIT.commit_timestamp, 104, 0))
    log = pa.table({name: [row[at] for row in rows] for at, name in enumerate(LogRow._fields)})
    (expected,) = messages.transactions([log], Rendering(), MOST_BYTES)
    assert messages.transaction_messages(list(transaction.rows()), Rendering()) == expected.messages


def test_clients_are_woken_for_whole_transactions_only() -> None:
    """Each time one is complete, and not for fragments, resends, skipped transactions and shapes nobody asks for."""
    tails = Tail().tails
    started = event(200, 0, follows=(104, 2), is_whole=False)
    assert [tails.add(KEY, each) for each in (FIRST, FIRST, started)] == [True, False, False]
    assert tails.add(KEY, event(200, 2, follows=(200, 0)))
    assert not tails.add(KEY, event(304, 0, follows=(200, 2), operation="truncate"))
    assert not tails.add(KEY, event(400, 0, follows=(304, 0), is_whole=False))
    assert not tails.add(KEY, event(400, 2, follows=(400, 0), schema="other"))
    assert not tails.add((SOURCE, "orders"), FIRST)


def test_item_without_a_key_is_left_to_the_log() -> None:
    """No message can name its row."""
    unnamed = LogItem(LogOffset(200, 0), "insert", None, {"id": "1"})
    tail = Tail(FIRST, sent(unnamed, follows=(104, 2)), THIRD)
    assert tail.shows(104, seen(104)) is None
    assert tail.shows(200, seen(200)) == [304]


def test_place_that_the_log_has_passed_of_an_empty_tail() -> None:
    """Only the log can tell whether it has that transaction."""
    tail = Tail(event(200, 0, follows=(104, 2), operation="truncate"))
    assert tail.shows(200, seen(304)) is None


def test_without_a_cut_a_client_has_what_it_was_shown() -> None:
    """Even one that has nothing yet; and a cut below its place adds nothing."""
    assert tail_link.reached_by(seen(0), seen(0).handle, 0) == 0
    assert tail_link.reached_by(seen(104), seen(104).handle, 200) == 200
    assert tail_link.reached_by(seen(104, cut=150), seen(104).handle, 200) == 200
    assert tail_link.reached_by(seen(104, cut=250), seen(104).handle, 200) == 250


_FAULTS: Final[dict[str, tuple[Callable[..., Any], str, str, Callable[[], None]]]] = {
    "the next incarnation goes on from what there is": (
        *(ShapeTail._link, "self._begin_after(event.follows)", "pass"),
        test_incarnation_whose_first_event_was_lost,
    ),
    "any later snapshot": (
        *(tail_link._knows_rows_of, "not snapshot.is_fold or ", ""),
        test_snapshot_again_while_ahead,
    ),
    "the cut links whoever is behind the log": (
        *(tail_link.reached_by, " or place < seen.tx", ""),
        test_start_above_cursor_of_a_quiet_shape,
    ),
}
"""Those that few random histories show."""


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_is_found_by_a_story(fault: str) -> None:
    """Named for the case."""
    function, old, new, story = _FAULTS[fault]
    with mutated(function, old, new), pytest.raises(AssertionError):
        story()
