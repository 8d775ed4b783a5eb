"""What a tail holds, counts and drops, and what its checks find."""

import gc
import re
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from flushtracker.serve.cache import PageCache
from flushtracker.serve.follower import Follower
from flushtracker.serve.tail import shape_tail
from flushtracker.serve.tail.shape_tail import ShapeTail
from flushtracker.serve.tail.tail_pages import TailPages
from flushtracker.serve.tail.tails import Tails
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.one_tail import FIRST, KEY, LIVE, MOST_BYTES, SECOND, THIRD, Tail, event, seen, sent
from tests.support.shape_log_rows import SOURCE


def test_nothing_is_held_of_a_transaction_without_its_beginning() -> None:
    """Nobody is ever shown it."""
    tail = Tail(event(104, 2, follows=(104, 0), is_whole=False))
    assert tail.tails.memory_bytes == 0
    tail.add(event(104, 4, follows=(104, 2)))
    assert tail.tails.memory_bytes == 0


def test_memory_is_bounded_and_counted() -> None:
    """Whatever is sent; and the count is what Python takes, within a third."""
    # Frees what Python keeps for the next tuples, whose memory would not be counted.
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tail = Tail(memory_bytes=300_000)
        for number in range(300):
            value = {"id": str(number), "note": f"{number} " * 10}
            tail.tails.add(KEY, event(8 * number + 104, 0, 2, 4, follows=(8 * number + 96, 4), value=value))
            assert tail.tails.memory_bytes <= 300_000
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tail.tails.memory_bytes >= 150_000
    assert 2 / 3 < (after - before) / tail.tails.memory_bytes < 4 / 3
    tail.tails.forget_all()
    tail.tails.check_invariants()
    assert tail.tails.memory_bytes == 0


def test_pages_of_a_tail_are_counted_by_the_cache() -> None:
    """While the writers are stopped, a client takes page after page; all of that is bounded and counted."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tails, cache = Tails(300_000), PageCache(300_000, 1 << 30)
        pages, by = TailPages(tails, cache, lambda: 0.0), seen(96)
        tails.ask(KEY, 0)
        place = 96
        for tx in range(104, 16_104, 8):
            tails.add(KEY, event(tx, 0, 2, follows=(tx - 8, 2), value={"id": str(tx), "note": f"{tx} " * 20}))
            page = pages.page(Follower(by, by.handle, by.tx, place))
            assert page is not None
            place = page.tx
            assert tails.memory_bytes <= 300_000
            assert cache.memory_bytes <= 300_000
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert place == 16_096
    assert (tails.memory_bytes > 150_000, cache.memory_bytes > 250_000) == (True, True)
    assert 1 / 2 < (after - before) / (tails.memory_bytes + cache.memory_bytes) < 4 / 3


@pytest.mark.parametrize("ends", ["room", "gap", "incarnation", "forgotten"])
def test_no_page_is_remembered_of_what_its_tail_has_dropped(ends: str) -> None:
    """Before the next look: pages that clients have asked for take no memory besides the tails'."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tails = Tails(1_000_000)
        tails.ask(KEY, 0)
        for number in range(60):
            tx, incarnation = 1_000 * number + 104, number + 1 if ends == "incarnation" else 1
            entry = replace(LIVE, definition=replace(LIVE.definition, incarnation=incarnation))
            by = seen(96, entry=entry)
            follows = (tx - 1_000 if ends == "room" and number else tx - 8, 0)
            value = {"id": "1", "note": f"{number} " * 100_000}
            tails.add(KEY, event(tx, 0, follows=follows, value=value, incarnation=incarnation))
            tails.page(by, by.handle, follows[0], MOST_BYTES)
            if ends == "forgotten":
                tails.forget(KEY)
            tails.check_invariants()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tails.memory_bytes <= 1_000_000
    assert after - before < 1_500_000


def test_all_texts_and_items_count() -> None:
    """Keys, values and old values, and each item besides."""
    small, large, row = '"public"."users"/"1"', "x" * 10_000, {"id": "1"}

    def size(*items: LogItem) -> int:
        return Tail(sent(*items, follows=(95, 0))).tails.memory_bytes

    least = size(LogItem(LogOffset(104, 0), "delete", small, row))
    assert size(LogItem(LogOffset(104, 0), "delete", large, row)) > least + 9_000
    assert size(LogItem(LogOffset(104, 0), "update", small, {"id": large}, row)) > least + 9_000
    assert size(LogItem(LogOffset(104, 0), "update", small, row, {"id": large})) > least + 9_000
    two, three = (size(*(LogItem(LogOffset(104, op), "delete", small, row) for op in range(count))) for count in (2, 3))
    assert three - two == two - least > 160


def test_memory_may_be_used_up_to_its_bound() -> None:
    """Nothing is dropped for as much as is allowed, and of the largest shape about half for more."""
    tail = Tail(FIRST, SECOND, THIRD)
    assert Tail(FIRST, SECOND, THIRD, memory_bytes=tail.tails.memory_bytes).shows(96, seen(96)) == [104, 200, 304]
    other, least = (SOURCE, "orders"), tail.tails.memory_bytes
    tails = Tails(21 * least)
    for key in (KEY, other):
        tails.ask(key, 0)
    for each in (FIRST, SECOND, THIRD):
        tails.add(KEY, each)
    follows = (95, 0)
    for tx in range(104, 2_504, 8):
        tails.add(other, event(tx, 0, follows=follows))
        tails.check_invariants()
        assert 9 * least < tails.memory_bytes <= 21 * least or tx < 1_000
        follows = (tx, 0)
    page = tails.page(seen(96), seen(96).handle, 96, MOST_BYTES)
    assert page is not None
    assert [each.tx_offset for each in page.transactions] == [104, 200, 304]


def test_an_event_of_one_of_many_shapes_costs_what_it_costs_for_few() -> None:
    """Also while there is no room: the tails of all shapes are on the event loop."""

    def seconds_an_event(shapes: int) -> float:
        keys, follows = [(SOURCE, str(number)) for number in range(shapes)], (96, 0)
        tails = Tails(4_000 * shapes)
        for key in keys:
            tails.ask(key, 0)
        spent = list[float]()
        for tx in range(104, 168, 8):
            each = event(tx, 0, follows=follows)
            began_s = time.process_time()
            for key in keys:
                tails.add(key, each)
            spent.append((time.process_time() - began_s) / shapes)
            follows = (tx, 0)
        tails.check_invariants()
        assert 2_000 * shapes < tails.memory_bytes <= 4_000 * shapes
        return sum(spent[4:])

    few = min(seconds_an_event(500) for _ in range(3))
    assert seconds_an_event(10_000) < 8 * few


def test_shrinks_by_whole_transactions_to_what_is_allowed() -> None:
    """No further than needed; and the open transaction goes last."""
    sizes = [each.memory_bytes for each in _shape_tail(FIRST, SECOND, THIRD).transactions]
    for most, left in ((sum(sizes), 3), (sum(sizes) - 1, 2), (sizes[2], 1), (sizes[2] - 1, 0), (0, 0)):
        tail = _shape_tail(FIRST, SECOND, THIRD)
        tail.shrink(most)
        tail.check_invariants()
        assert [each.tx_offset for each in tail.transactions] == [104, 200, 304][3 - left :]
    opened = event(400, 0, follows=(304, 0), is_whole=False)
    tail = _shape_tail(FIRST, SECOND, THIRD, opened)
    rest = tail.memory_bytes - sum(sizes)
    tail.shrink(rest)
    assert (tail.transactions, tail.memory_bytes, tail.base) == ([], rest, LogOffset.last_of(304))
    tail.shrink(rest - 1)
    assert (tail.memory_bytes, tail.base) == (0, LogOffset.last_of(400))


def test_what_is_forgotten_is_counted_off() -> None:
    """For the shape, and for all."""
    tail = Tail(FIRST, SECOND, THIRD)
    tail.tails.ask((SOURCE, "orders"), 0)
    tail.tails.add((SOURCE, "orders"), FIRST)
    for shape_id in ("orders", "unknown", KEY[1]):
        tail.tails.forget((SOURCE, shape_id))
        tail.tails.check_invariants()
    assert tail.tails.memory_bytes == 0


def test_largest_transaction_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as much as is allowed, and not a byte more."""
    least = Tail(event(104, 0, follows=(95, 0), is_whole=False)).tails.memory_bytes
    for most, shown in ((least, [104]), (least - 1, None)):
        monkeypatch.setattr(shape_tail, "MOST_TRANSACTION_BYTES", most)
        assert Tail(event(104, 0, follows=(95, 0))).shows(96, seen(96)) == shown


def test_resets_count_what_was_dropped() -> None:
    """A tail that only begins, or that nothing is missing in, has dropped nothing."""
    tail = Tail(FIRST, SECOND, FIRST)
    assert tail.tails.resets == _shape_tail(FIRST).drops == 0
    tail.add(event(400, 0, follows=(304, 0)), event(504, 0, follows=(495, 0)))
    assert tail.tails.resets == 2
    tail.add(event(600, 0, follows=(504, 0), operation="truncate"))
    assert tail.tails.resets == 3


def _shape_tail(*events: ChangeColumns) -> ShapeTail:
    tail = ShapeTail(events[0])
    for each in events:
        tail.add(each)
    return tail


def _set(name: str, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda tail: setattr(tail, name, change(getattr(tail, name)))


_CONTRADICTIONS: Final[dict[str, Callable[[Any], None]]] = {
    "base, transactions and cursor are not in order: 0/190+inf, 0/68+inf, 0/C8+0": _set(
        "base", lambda _: LogOffset.last_of(400)
    ),
    "base, transactions and cursor are not in order: 0/5F+0, 0/68+inf, 0/68+inf, 0/C8+0": _set(
        "transactions", lambda held: [held[0], *held]
    ),
    "memory_bytes is 1, but ": _set("memory_bytes", lambda _: 1),
    "there are items, but no transaction is open": _set("_open_tx", lambda _: None),
    "the transaction at 104 is open, but the cursor is 0/C8+0": _set("_open_tx", lambda _: 104),
}


@pytest.mark.parametrize("message", _CONTRADICTIONS)
def test_a_contradiction_in_a_tail_is_found(message: str) -> None:
    """By its check, which the histories rely on."""
    tail = _shape_tail(FIRST, event(200, 0, follows=(104, 2), is_whole=False))
    tail.check_invariants()
    _CONTRADICTIONS[message](tail)
    with pytest.raises(AssertionError, match=f"^{re.escape(message)}"):
        tail.check_invariants()


def test_a_contradiction_in_the_tails_is_found() -> None:
    """By what they take, and by who has asked."""
    tails = Tail(FIRST).tails
    tails.memory_bytes += 1
    with pytest.raises(AssertionError, match=r"^memory_bytes is [0-9]+, but the tails have [0-9]+$"):
        tails.check_invariants()
    for asked, asked_s in ((frozenset(), {}), (frozenset({KEY, (SOURCE, "orders")}), {KEY: 0.0})):
        tails = Tail(FIRST).tails
        tails.asked, tails._asked_s = asked, asked_s
        with pytest.raises(AssertionError, match=r"^there is a tail that nobody has asked for$"):
            tails.check_invariants()
